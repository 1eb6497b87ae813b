"""One run: `launch` starts fresh processes, `worker` is such a process, `measure` times it, `outcome` makes the record.

(The folder is called `runs` because `paceline.run` is the public function.)
"""
