from typing import Any


def show(p: Any) -> str:
    return ""


def show_var(p: Any) -> str:
    return ""


def show_op(p: Any) -> str:
    return ""


def show_block(p: Any) -> str:
    return ""
