"""Environments that grade the answers of tasks."""
