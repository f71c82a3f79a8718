"""What other projects take: patches and files for programs that are not written in Python or not ours."""
