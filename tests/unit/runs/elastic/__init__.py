"""Tests of runs whose members change."""
