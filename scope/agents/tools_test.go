package agents

import "github.com/scopefs/scopefs/scope/catalog"

// ours are the tools of these tests.
func ours() catalog.Tools {
	all := catalog.Tools{}
	for _, name := range []string{"read_file", "list_dir", "stat", "glob", "grep", "process_read", "process_stop", "scope_info"} {
		all = append(all, catalog.Tool{Name: name})
	}
	for _, name := range []string{"write_file", "edit_file", "make_dir", "move", "copy", "delete_file", "delete"} {
		all = append(all, catalog.Tool{Name: name, Writes: true})
	}
	return append(all, catalog.Tool{Name: "bash", Aliases: []string{"shell", "run_shell_command"}, Listed: catalog.ListedBase}, catalog.Tool{Name: "ask_user", Listed: catalog.ListedBase},
		catalog.Tool{Name: "remember", Writes: true, Listed: catalog.ListedMemory}, catalog.Tool{Name: "recall", Listed: catalog.ListedMemory}, catalog.Tool{Name: "memory", Listed: catalog.ListedMemory},
		catalog.Tool{Name: "forget", Writes: true, Listed: catalog.ListedMemory}, catalog.Tool{Name: "skill", Listed: catalog.ListedSkills}, catalog.Tool{Name: "delegate", Listed: catalog.ListedMembers})
}
