package amend

import (
	"errors"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/tools/sandbox"
)

// Set sets a key of the definition to a value in YAML, in one line. Nothing else of the definition changes.
func (d *Draft) Set(keys []string, value string) error {
	if strings.TrimSpace(value) == "" {
		return errors.New("an empty value: give one, or --unset")
	}
	if err := d.apply(frontmatter.Edit{Keys: keys, Set: value}); err != nil {
		return err
	}
	had := func(name string) bool { return slices.Contains(d.first.Devices, name) }
	return sandbox.CheckDevices(slices.DeleteFunc(slices.Clone(d.agent.Devices), had))
}

// Unset removes a key of the definition.
func (d *Draft) Unset(keys []string) error { return d.apply(frontmatter.Edit{Keys: keys, Index: -1}) }

// maxUpdates bounds the attempts of AddPresets. Each fails because another command has written the definition meanwhile.
const maxUpdates = 5

// AddPresets adds presets to network: {presets} of a project's definition, unless the user has edited the definition. It returns what
// it has written; nil: nothing.
func AddPresets(p config.Paths, project *config.Project, presets []string) (d *Draft, err error) {
	for range maxUpdates {
		if d, err = Open(p, project.ID); err != nil || !project.Unedited(string(d.before)) {
			return nil, err
		}
		var edits []frontmatter.Edit
		for i, name := range presets {
			if !slices.Contains(d.agent.Network.Presets, name) && !slices.Contains(presets[:i], name) {
				edits = append(edits, frontmatter.Edit{Keys: []string{"network", "presets"}, Add: frontmatter.Quote(name)})
			}
		}
		if err = d.apply(edits...); err != nil || edits == nil {
			return nil, err
		}
		if err = d.Write(); err == nil {
			return d, nil
		}
		if !errors.Is(err, definitions.ErrChanged) {
			break
		}
	}
	return nil, err
}
