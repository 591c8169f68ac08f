package agents

import (
	"errors"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
)

// A branch is an agent whose definition says of which agent it is one. It has that agent's definition and directory, its
// changes are held, and its files, sessions and records are its own.

// HeldLayer is the branch of commands with --changes held: that of a project's agent has this name, others have it at the end of theirs.
const HeldLayer = "held"

// HomeID returns whose HOME the agent's sandboxes have. Branches have their own, but commands with --changes held are the agent's.
func (d *Definition) HomeID() scope.ID {
	if d.Branch != "" && (d.Name == HeldLayer || d.Name == d.Branch+"-"+HeldLayer) {
		return d.Branch
	}
	return d.Name
}

func branchField(out *scope.ID) fields.Field {
	return func(n *yaml.Node) error {
		var s string
		if err := fields.Text(&s)(n); err != nil {
			return err
		}
		id, err := scope.ParseID(s)
		*out = id
		return err
	}
}

// checkBranch returns an error if the keys of a branch say more than its name.
func checkBranch(front []byte) error {
	var keys map[string]any
	if err := yaml.Unmarshal(front, &keys); err != nil {
		return err
	}
	for key := range keys {
		if !slices.Contains([]string{"name", "branch", "description", "display_name"}, key) {
			return fmt.Errorf("branch: %s is that of the agent: write it there, or leave branch out", key)
		}
	}
	return nil
}

// resolveBranches gives branches the definitions of their agents.
func resolveBranches(all []*parsed) {
	by := map[scope.ID]*parsed{}
	for _, p := range all {
		by[p.id] = p
	}
	for _, p := range all {
		if p.def == nil || p.def.Branch == "" || p.err != nil {
			continue
		}
		of, err := by[p.def.Branch], error(nil)
		switch {
		case of == nil:
			err = fmt.Errorf("branch: no agent %q is in %s: correct the name", p.def.Branch, agentsDir)
		case of.err != nil || of.def == nil:
			err = fmt.Errorf("branch: agent %q does not load: correct %s", of.id, of.file)
		case of.def.Branch != "":
			err = fmt.Errorf("branch: %q is a branch itself: name its agent %q", of.id, of.def.Branch)
		case of.def.Identity == IdentityCaller:
			err = errors.New("branch: its agent has identity: caller, and changes: held needs identity: agent")
		case of.def.Tasks == ChangesHeld:
			err = errors.New("branch: its agent has delegate: {changes: held}, and a branch has no branches")
		}
		if err != nil {
			p.def, p.err = nil, fields.ErrorAt(p.file, 1, p.id, err)
			continue
		}
		def := *of.def
		def.Name, def.Branch, def.DisplayName, def.Description = p.id, of.id, p.def.DisplayName, p.def.Description
		def.View.Changes = ChangesHeld
		p.def, p.refs, p.of, p.trusted = &def, of.refs, of.text, of.trusted
	}
}

// Task returns the definition of a task that caller gives to a member: a branch of the caller's directory, as the caller's
// user, by the rules of both. The member's limits hold. name is of this task alone.
func Task(name scope.ID, caller, member *Definition) *Definition {
	def := TaskOf(name, caller)
	v, own := &def.View, member.View
	v.setPolicy(within(v.PolicySpec(), fixed(own.PolicySpec())))
	v.Record = max(v.Record, own.Record)
	if own.Data == DataMediated {
		v.Data = own.Data
	}
	if own.Cache == CacheNone {
		v.Cache = own.Cache
	}
	v.XAttrs = v.XAttrs && own.XAttrs
	def.Limits = member.Limits
	return def
}

// TaskOf returns the definition of the branch of a task by the rules of the caller alone, by which it takes the branch over.
func TaskOf(name scope.ID, caller *Definition) *Definition {
	return &Definition{
		Name: name, Branch: caller.Name, Dir: caller.Dir, User: caller.User, Identity: IdentityAgent, Limits: caller.Limits,
		History: History{Dir: caller.History.Dir}, View: heldView(caller.View),
	}
}

// heldView returns the view of a task. What the operator takes over by himself, a task and its commit do not change.
func heldView(v ViewSpec) ViewSpec {
	v.Changes, v.AllowOther = ChangesHeld, false
	v.setPolicy(fixed(v.PolicySpec()))
	return v
}
