"""Policies that give branches up."""
