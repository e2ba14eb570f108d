"""The prompt by which a small chat model plans calls of functions: two examples, and the functions."""

__all__ = ["PLAN"]

PLAN = """\
Write the calls of functions that answer a question, one a line, and then join().

Example 1. The functions are get_weather(city: string, day: string = "today") and get_time(city: string).
Question: What is the weather in Rome and in Oslo tomorrow?
1. get_weather(city="Rome", day="tomorrow")
2. get_weather(city="Oslo", day="tomorrow")
3. join()<END_OF_PLAN>

Example 2. The functions are add(a: number, b: number).
Question: How much is 3 and 4?
1. add(a=3, b=4)
2. join()<END_OF_PLAN>

Now the functions are:

{tools}
"""
