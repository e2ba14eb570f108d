"""Policies that end a vote early."""
