package amend

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/scope"
)

// maxUpdates bounds the attempts of Update. Each fails because another command has written the definition meanwhile.
const maxUpdates = 5

// Update makes the edits of flags in the definition of an agent, and writes it if it then loads. Every other rule stays. undo
// writes the text from before, unless somebody has changed the definition since.
func Update(p config.Paths, id scope.ID, edits ...func(*Draft) error) (undo func() error, err error) {
	nothing := func() error { return nil }
	for range maxUpdates {
		var d *Draft
		if d, err = Open(p, id); err != nil {
			return nothing, err
		}
		for _, edit := range edits {
			if err := edit(d); err != nil {
				return nothing, err
			}
		}
		if string(d.before) == string(d.after) {
			return nothing, nil
		}
		if err = d.Write(); err == nil {
			return func() error { return definitions.Replace(d.File, d.after, d.before) }, nil
		}
		if !errors.Is(err, definitions.ErrChanged) {
			break
		}
	}
	return nothing, err
}

// SetChanges sets view: {changes}.
func SetChanges(to string) func(*Draft) error {
	return func(d *Draft) error {
		return d.apply(frontmatter.Edit{Keys: []string{"view", "changes"}, Set: to})
	}
}

// Unseal removes the rules that seal the files that hold secrets: view: {secrets}, and their patterns in view: {paths} of a
// definition of a version up to November 2026. It fails if another rule of a pattern would still hide its files.
func Unseal() func(*Draft) error {
	var patterns []string
	for _, r := range scope.SecretRules(scope.Seal) {
		patterns = append(patterns, r.Pattern)
	}
	return func(d *Draft) error {
		var edits []frontmatter.Edit
		if d.text("view", scope.Secrets) == scope.Seal.String() {
			edits = append(edits, frontmatter.Edit{Keys: []string{"view", scope.Secrets}})
		}
		for pattern, access := range d.paths() {
			if slices.Contains(patterns, pattern) && access == scope.Seal.String() {
				edits = append(edits, frontmatter.Edit{Keys: []string{"view", "paths", pattern}})
			}
		}
		if err := d.apply(edits...); err != nil {
			return err
		}
		for _, r := range d.agent.View.Paths {
			if slices.Contains(patterns, r.Pattern) && (r.Access == scope.Hide || r.Access == scope.Seal) {
				return fmt.Errorf("%s: %s: %s stands in the way: remove it", d.File,
					cmp.Or(strings.TrimSuffix("view."+r.Name, "view."), "view.paths: "+r.Pattern), r.Access)
			}
		}
		return nil
	}
}

// text returns the value of a key in the file itself; "": it has none.
func (d *Draft) text(keys ...string) string {
	front, _, err := frontmatter.Cut(d.after)
	if err != nil {
		return ""
	}
	value, err := frontmatter.Parse(front)
	for _, key := range keys {
		if err != nil || value == nil {
			return ""
		}
		value = frontmatter.Value(value, key)
	}
	if value == nil {
		return ""
	}
	return value.Value
}

// paths iterates over view: {paths} of the file itself: the agent may have further rules, of other files.
func (d *Draft) paths() func(yield func(pattern, access string) bool) {
	return func(yield func(pattern, access string) bool) {
		front, _, err := frontmatter.Cut(d.after)
		if err != nil {
			return
		}
		top, err := frontmatter.Parse(front)
		if err != nil || top == nil {
			return
		}
		view := frontmatter.Value(top, "view")
		if view == nil {
			return
		}
		paths := frontmatter.Value(view, "paths")
		for i := 0; paths != nil && paths.Kind == frontmatter.Mapping && i+1 < len(paths.Content); i += 2 {
			if !yield(paths.Content[i].Value, paths.Content[i+1].Value) {
				return
			}
		}
	}
}

// AddPresets adds presets to network: {presets} of a project's definition, unless the user has edited the definition.
func AddPresets(p config.Paths, project *config.Project, presets []string) error {
	_, err := Update(p, project.ID, func(d *Draft) error {
		if !project.Unedited(string(d.before)) {
			return nil
		}
		var edits []frontmatter.Edit
		for i, name := range presets {
			if !slices.Contains(d.agent.Network.Presets, name) && !slices.Contains(presets[:i], name) {
				edits = append(edits, frontmatter.Edit{Keys: []string{"network", "presets"}, Add: frontmatter.Quote(name)})
			}
		}
		return d.apply(edits...)
	})
	return err
}
