package launch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/internal/programs"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/hosts"
	"github.com/scopefs/scopefs/scope/network"
)

// Addable finds a command for which a file of a program can be written, under a name that no program has.
func (p Place) Addable(ctx context.Context, name, command string) (programs.Found, error) {
	switch _, err := programs.Of(p.Base, p.User, name); {
	case err == nil:
		return programs.Found{}, fmt.Errorf("%s is a program already: scopefs programs show %s prints its file", name, name)
	case !errors.Is(err, programs.ErrUnknown):
		return programs.Found{}, err
	}
	found, err := programs.Find(ctx, command, p.ofAgents())
	if err == nil {
		_, err = programs.Parse(programs.File(cmp.Or(p.Base, p.User), name), []byte("command: "+command+"\n"))
	}
	return found, err
}

// Propose returns the name and the text of a file for a program, by what was refused to the command in the log.
func (p Place) Propose(ctx context.Context, name, command string) (file, text string, err error) {
	found, err := p.Addable(ctx, name, command)
	if err != nil {
		return "", "", err
	}
	refused, err := p.refusedTo(ctx, command, found.File)
	if err != nil {
		return "", "", err
	}
	text = fmt.Sprintf("description: %s, found as %s.\ncommand: %s\n", name, found.File, command)
	presets, others := p.presetsFor(refused.hosts)
	if len(presets) > 0 {
		text += fmt.Sprintf("network: [%s] # their hosts were refused; it needs one of them\n", strings.Join(presets, ", "))
	}
	if len(others) > 0 {
		text += fmt.Sprintf("# Refused as well: to allow it, network: {allow: [%s]} in the agent's definition.\n", strings.Join(others, ", "))
	}
	if outside := p.shownOf(command, refused.targets); len(outside) > 0 {
		text += fmt.Sprintf(
			"# Links led there, and were refused: expose: [%s] shows it to every agent that runs the program.\n", strings.Join(outside, ", "))
	}
	return programs.File(cmp.Or(p.Base, p.User), name), text, nil
}

// shownOf returns the targets, quoted, that a sandbox can show: what is on this host, and that no agent may write.
func (p Place) shownOf(command string, targets []string) (shown []string) {
	foreign := p.ofAgents()
	for _, target := range targets {
		if filepath.IsAbs(target) && programs.Showable(command, target, foreign) == nil {
			shown = append(shown, strconv.Quote(filepath.Clean(target)))
		}
	}
	slices.Sort(shown)
	return slices.Compact(shown)
}

// WriteNew writes a file that there is none of.
func WriteNew(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	return durable.ReplaceAt(name, []byte(text), durable.Options{Mode: 0o644, New: true, Shared: true})
}

// refused is what was refused while a command ran, by the log.
type refused struct {
	hosts   []string // by the network, to its sessions
	targets []string // of links that lead out of the view, to its agents
}

// refusedTo reads the log.
func (p Place) refusedTo(ctx context.Context, command, file string) (r refused, err error) {
	sessions := map[string]bool{}
	running := map[string]int{} // by agent: an event of the view has no session
	for e, err := range audit.Read(ctx, p.Audit(), audit.Filter{}, false) {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return r, nil // nothing has run yet
		case err != nil:
			return r, err
		case e.Event == audit.KindSandbox && e.Op == "exec":
			words := strings.Fields(e.Target)
			if len(words) == 0 || words[0] != command && words[0] != file {
				continue
			}
			if sessions[e.Session] = true; e.Outcome == "begin" {
				running[e.Agent]++
			} else {
				running[e.Agent]--
			}
		case e.Event == audit.KindNetwork && e.Verdict == audit.Deny && e.RuleKind != string(scope.KindPort) && sessions[e.Session]:
			host, _, _ := strings.Cut(e.Target, ":")
			if !slices.Contains(r.hosts, host) {
				r.hosts = append(r.hosts, host)
			}
		case e.Event == audit.KindFile && e.Verdict == audit.Violation && running[e.Agent] > 0:
			r.targets = append(r.targets, e.Target)
		}
	}
	return r, nil
}

// presetsFor returns the presets that allow hosts, and the hosts that none allows.
func (p Place) presetsFor(refused []string) (presets, others []string) {
	all, _ := hosts.Presets(p.Base, p.User) // an error of a file is the definition's to report
	for _, host := range refused {
		known := false
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if !slices.ContainsFunc(all[name].Allow, func(r network.HostRule) bool { return r.Host == host }) {
				continue
			}
			if known = true; !slices.Contains(presets, name) {
				presets = append(presets, name)
			}
		}
		if !known {
			others = append(others, host)
		}
	}
	return presets, others
}
