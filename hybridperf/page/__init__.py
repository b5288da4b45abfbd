"""The what-if page: a local web application that asks the commands and draws their answers.

    views.toml   what can be asked: a view's fields, and the command that they become
    questions    fields' values -> the arguments of a command, checked; the words to copy
    processes    programs that answer commands; one that is stopped is started again
    uploads      files that a reader dropped, bounded, gone with the server
    server       who may ask (token, host, origin), and the routes
    front/       what the browser runs: no build step, nothing fetched from elsewhere

The server prices nothing: each number comes from a command's `--json`, so that it is the one that
the button "copy as command" gives.
"""
