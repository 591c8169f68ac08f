package session

import (
	"fmt"
	"slices"

	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/bash"
	"github.com/scopefs/scopefs/tools/file/profile"
)

// notOfProfiles returns an error for a name that a profile gives to a tool: a client
// with that profile would have two of the name.
func notOfProfiles(name, remedy string) error {
	for _, p := range []string{profile.Claude, profile.AnthropicEditor, profile.MCPFS} {
		files, err := profile.New(p, nil)
		if err != nil {
			return err
		}
		shells, err := bash.Profile(p)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(append(files, shells...), func(t tools.Tool) bool { return t.Name == name }) {
			return fmt.Errorf("%s is the name of a tool of --profile %s: %s", name, p, remedy)
		}
	}
	return nil
}
