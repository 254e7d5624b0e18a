"""First words of a user's message, which the target then completes by itself.

A target that opens a conversation with nothing given asks about few things; these widen the range. They are
beginnings of questions only: no answer and no whole task is in them.
"""

from __future__ import annotations

CHAT_OPENINGS = (
    "What is", "What are the", "How do I", "How does", "Why do", "Why is it that", "Explain", "Explain how",
    "Can you tell me", "Give me some", "Give me three", "List the", "I am trying to", "I want to learn",
    "My friend", "Yesterday I", "What should I", "Tell me a story about", "Write a short", "Write an email",
    "Write a letter", "Write a poem", "Describe", "Compare", "What is the difference between", "Who was", "When did",
    "Where can I", "Is it true that", "Help me", "Suggest", "Plan a", "Imagine", "Let's talk about", "Translate",
    "Please recommend", "What would happen if", "How can we", "In history,", "In science,", "As a teacher,",
    "Write a product description", "Write an essay about", "What are the steps to", "Define", "I feel",
)  # fmt: skip

CODE_OPENINGS = (
    "Write a Python function that", "Write a Python function to", "Write a Python class", "Write a Python program that",
    "Write a JavaScript function", "Write a SQL query", "Write a shell script", "Write a C function",
    "Write a Java method", "How do I read a file in Python", "How can I sort", "Implement", "Implement a",
    "Here is my code:\n\n```python\n", "Fix this Python code:\n\n```python\n", "What does this code do?\n\n```python\n",
    "Write unit tests for", "In Python, how", "Create a function called", "Write an HTML page", "Using numpy,",
    "Using regular expressions,", "Given a list of", "Given a string,", "Explain this error:", "Refactor",
)  # fmt: skip

COPY_REQUESTS = (
    "Summarize the following text:\n\n{}",
    "Summarize this in one sentence:\n\n{}",
    "Rewrite the following text in simpler words:\n\n{}",
    "Correct the grammar of the following text:\n\n{}",
    "Repeat the following text exactly:\n\n{}",
    "{}\n\nSummarize the text above.",
    "{}\n\nWhat are the main points?",
    "Turn the following text into a list of bullet points:\n\n{}",
    "Answer from this text only:\n\n{}\n\nWhat is it about?",
)

PASSAGE_OPENINGS = (
    "The town of", "In the spring of", "Members of the", "Our company", "The river", "Last week", "The new rules",
    "To install the", "A recent study", "Dear neighbours,", "The museum", "When the train", "Before you use the",
    "My grandmother", "The meeting was", "Scientists have", "Each student", "The recipe", "On the first day",
    "Visitors are", "The old bridge", "This contract", "During the winter", "The team", "A small business", "Bees",
)  # fmt: skip
"""First words of a passage that the target writes itself before it is asked about it."""

CODE_REQUESTS = (
    "Complete the following Python function:\n\n```python\n{}\n```",
    "Finish this Python code:\n\n{}",
    "Implement this function:\n\n```python\n{}\n```",
    "Explain what this function does:\n\n```python\n{}\n```",
    "Write a docstring for this function:\n\n```python\n{}\n```",
    "{}",
)
