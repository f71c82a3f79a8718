"""Texts on which the harm of penalties is measured."""
