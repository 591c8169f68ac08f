// Package amend changes rules in the definition of an agent: what scopefs allow and deny do.
//
// A [Draft] is the text of a definition with changes that nobody has written yet. Each change is loaded, as the daemon
// would, and made only if the rules then decide as the change says. A rule that denies is never lifted unless the
// operator says so.
package amend

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/definitions"
	"github.com/scopefs/scopefs/internal/folder"
	"github.com/scopefs/scopefs/internal/frontmatter"
	"github.com/scopefs/scopefs/internal/printable"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/excess"
	"github.com/scopefs/scopefs/scope/widening"
)

// Draft is a definition with changes. It is for one goroutine.
type Draft struct {
	File string // of the definition, absolute

	base, user    string // directories of settings
	all           *agents.Snapshot
	tools         catalog.Tools
	agent, first  *agents.Agent // by after and by before
	before, after []byte
}

// Open returns a draft of the definition of an agent, which loads.
func Open(p config.Paths, id scope.ID) (*Draft, error) { return open(p, definitions.Read(p, nil), id) }

// open is Open among definitions that were read.
func open(p config.Paths, known *definitions.Set, id scope.ID) (*Draft, error) {
	agent, err := known.Agent(id)
	if err != nil {
		return nil, err
	}
	dir, name := path.Split(agent.File)
	switch {
	case agent.Branch != "":
		return nil, fmt.Errorf("%s is a branch, with the rules of %s: give --agent %s", id, agent.Branch, agent.Branch)
	case agent.RootOf != "":
		return nil, fmt.Errorf("%s is a root of %s: edit view: {roots} in %s", id, agent.RootOf, agent.Path(p.Base))
	case path.IsAbs(dir):
		return nil, fmt.Errorf("%s is defined for all your projects: edit %s", id, agent.File)
	case path.Clean(dir) != "agents.d":
		return nil, fmt.Errorf("%s is the agent of an extension: edit %s", id, filepath.Join(p.Base, agent.File))
	}
	in, err := folder.Open(p.Base, path.Clean(dir))
	if err != nil {
		return nil, err
	}
	defer in.Close()
	text, err := in.Read(name, nil)
	if err != nil {
		return nil, err
	}
	base, err := filepath.Abs(p.Base)
	d := &Draft{File: filepath.Join(base, agent.File), base: base, user: p.User, all: known.All, tools: known.Host.Tools, before: text.Data}
	err = errors.Join(err, d.apply())
	d.first = d.agent
	return d, err
}

// Widens returns what the agent may do by the draft and may not by the file.
func (d *Draft) Widens() []excess.Excess { return widening.Of(d.agent, d.first) }

// Changes returns the texts of the definition, which are equal if nothing changes.
func (d *Draft) Changes() (before, after []byte) { return d.before, d.after }

// Hash identifies the change: the file and both texts.
func (d *Draft) Hash() string {
	text, _ := json.Marshal([]string{d.File, string(d.before), string(d.after)}) // cannot fail
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Write writes the definition. It does not if somebody has changed the file since Open.
func (d *Draft) Write() error { return definitions.Replace(d.File, d.before, d.after) }

// apply makes edits, and loads the definition. Without edits it loads that of the file.
func (d *Draft) apply(edits ...frontmatter.Edit) error {
	text := d.after
	if text == nil {
		text = d.before
	}
	for _, e := range edits {
		var err error
		if text, err = e.Apply(text); err != nil {
			return fmt.Errorf("%s: %w: edit it", d.File, err)
		}
	}
	agent, errs, _ := d.all.Try(d.File, text)
	if agent == nil {
		return &api.NotLoadedError{Err: errors.Join(errs...)}
	}
	d.agent, d.after = agent, text
	return nil
}

// Change is a rule to change.
type Change struct {
	Name string
	Kind Kind // "": found by the name

	// Access of a path: of Allow write or read, of Deny hide or read.
	Access scope.Access

	// As is a preset: a host is allowed as far as the preset allows its own. Address is the host's.
	As      string
	Address netip.AddrPort

	// RemoveDeny lets Allow remove rules that deny or that need an approval, as a whole.
	RemoveDeny bool
}

// ObstacleError reports rules that deny what is to be allowed.
type ObstacleError struct {
	Name  string
	Rules []string
}

func (e *ObstacleError) Error() string {
	stand := "stands"
	if len(e.Rules) > 1 {
		stand = "stand"
	}
	return fmt.Sprintf("%s: %s %s in the way: --remove-deny removes what denies it", e.Name, strings.Join(e.Rules, ", and "), stand)
}

// amended is one change of Allow.
type amended struct {
	decide func(*agents.Agent) scope.Decision
	inWay  []string           // rules that deny, for people
	remove []frontmatter.Edit // remove them, and rules that name exactly this and need an approval
	add    func() []frontmatter.Edit
	also   bool  // add, also if what is removed suffices
	err    error // why add would take something away
}

// Allow allows a host, a tool, a path or a preset, and returns what the rules say of it.
func (d *Draft) Allow(c Change) (said string, err error) {
	t, err := d.target(c)
	if err != nil {
		return "", err
	}
	h, ok := t.rule.(hostRule)
	if ok && !c.Address.IsValid() {
		c.Address = h.ownAddress()
	}
	a := t.allow(d, c)
	now := a.decide(d.agent)
	switch elsewhere := now.Allow && c.Address.IsValid() && !d.at(c.Name, c.Address); {
	case elsewhere && h.preset(d) != "":
		c.As = cmp.Or(c.As, h.preset(d))
		if _, err := h.items(c, d.presets()); err != nil {
			return "", err
		}
		a = h.allow(d, c)
		a.also = true
	case elsewhere:
		return "", fmt.Errorf("%s is allowed without that address (%s): write address: %s into its rule in %s",
			t.text, printable.Text(now.Rule), c.Address.Addr(), d.File)
	case now.Allow:
		return fmt.Sprintf("%s is allowed already (%s)", t.text, printable.Text(now.Rule)), nil
	}
	if a.err != nil {
		return "", fmt.Errorf("%s: %w: edit %s", t.text, a.err, d.File)
	}
	if len(a.inWay) > 0 && !c.RemoveDeny {
		return "", &ObstacleError{t.text, a.inWay}
	}
	undo := *d
	if err = d.apply(a.remove...); err == nil && (a.also || !a.decide(d.agent).Allow) {
		err = d.apply(a.add()...)
	}
	if now := a.decide(d.agent); err == nil && !now.Allow {
		remedy := cmp.Or(now.Remedy, "change it")
		err = fmt.Errorf("%s: %s stands in the way: %s in %s", t.text, now.Rule, remedy, d.File)
	}
	if err != nil {
		*d = undo
		return "", err
	}
	return fmt.Sprintf("%s: allowed (%s)", t.text, printable.Text(a.decide(d.agent).Rule)), nil
}

// Deny denies a host, a tool or a path, and returns what the rules say of it.
func (d *Draft) Deny(c Change) (said string, err error) {
	t, err := d.target(c)
	if err != nil {
		return "", err
	}
	edit, decide, err := t.deny(d, c)
	if err != nil {
		return "", err
	}
	if now := decide(d.agent); edit == nil || !now.Allow && !now.Ask {
		return fmt.Sprintf("%s is denied already (%s)", t.text, printable.Text(now.Rule)), nil
	}
	undo := *d
	err = d.apply(*edit)
	if now := decide(d.agent); err == nil && (now.Allow || now.Ask) {
		err = fmt.Errorf("%s: %s allows it all the same: edit %s", t.text, now.Rule, d.File)
	}
	if err != nil {
		*d = undo
		return "", err
	}
	return fmt.Sprintf("%s: denied (%s)", t.text, printable.Text(decide(d.agent).Rule)), nil
}

// removals returns edits that remove items of a list, from the last one.
func removals(keys []string, indexes []int) (edits []frontmatter.Edit) {
	for _, i := range slices.Backward(indexes) {
		edits = append(edits, frontmatter.Edit{Keys: keys, Index: i})
	}
	return edits
}
