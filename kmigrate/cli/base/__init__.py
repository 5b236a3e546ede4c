"""What all commands share: a call, its flags, its output, and its questions.

call        a call: common flags, configuration, and the handling of every error
completion  names for a shell's completion
lazy        commands whose modules are imported when they are called or helped
leading     common options before the verb
options     flags that several commands share
targets     the cluster that a verb without `--target` means
exits       exit codes
references  what each error reference means
output      a result on stdout, progress and errors on stderr
words       text from outside, made harmless for a terminal
wizard      questions to a person
waiting     the wait for the result of an intent
signals     SIGTERM and a closed terminal
values      rates, ranges and start positions as a person types them
absent      known features that this version lacks
"""
