package agents

// ours are the tools of these tests.
func ours() Tools {
	all := Tools{}
	for _, name := range []string{"read_file", "list_dir", "stat", "glob", "grep", "process_read", "process_stop", "scope_info"} {
		all = append(all, Tool{Name: name})
	}
	for _, name := range []string{"write_file", "edit_file", "make_dir", "move", "copy", "delete_file", "delete"} {
		all = append(all, Tool{Name: name, Writes: true})
	}
	return append(all, Tool{Name: "bash", Aliases: []string{"shell", "run_shell_command"}, Listed: ListedBase}, Tool{Name: "ask_user", Listed: ListedBase},
		Tool{Name: "remember", Writes: true, Listed: ListedMemory}, Tool{Name: "recall", Listed: ListedMemory}, Tool{Name: "memory", Listed: ListedMemory},
		Tool{Name: "forget", Writes: true, Listed: ListedMemory}, Tool{Name: "skill", Listed: ListedSkills}, Tool{Name: "delegate", Listed: ListedMembers})
}
