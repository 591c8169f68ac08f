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
	"strings"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/programs"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/hosts"
)

// Add writes the file of a program, which must be in PATH, and returns its name and its text.
func (p Place) Add(ctx context.Context, name, command string) (file, text string, err error) {
	switch _, err := programs.Of(p.Base, p.User, name); {
	case err == nil:
		return "", "", fmt.Errorf("%s is a program already: scopefs programs show %s prints its file", name, name)
	case !errors.Is(err, programs.ErrUnknown):
		return "", "", err
	}
	found, err := programs.Find(ctx, command, p.ofAgents())
	if err != nil {
		return "", "", err
	}
	text = fmt.Sprintf("description: %s, found as %s.\ncommand: %s\n", name, found.File, command)
	refused, err := p.refusedTo(ctx, command, found.File)
	if err != nil {
		return "", "", err
	}
	presets, others := p.presetsFor(refused)
	if len(presets) > 0 {
		text += fmt.Sprintf("network: [%s] # their hosts were refused; it needs one of them\n", strings.Join(presets, ", "))
	}
	if len(others) > 0 {
		text += fmt.Sprintf("# Refused as well: to allow it, network: {allow: [%s]} in the agent's definition.\n", strings.Join(others, ", "))
	}
	file = programs.File(cmp.Or(p.Base, p.User), name)
	if _, err := programs.Parse(file, []byte(text)); err != nil {
		return "", "", err
	}
	return file, text, writeNew(file, text)
}

func writeNew(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// refusedTo returns the hosts that the network refused to the sessions of a command, by the log.
func (p Place) refusedTo(ctx context.Context, command, file string) ([]string, error) {
	sessions, refused := map[string]bool{}, []string(nil)
	for e, err := range audit.Read(ctx, p.Audit(), audit.Filter{}, false) {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, nil // nothing has run yet
		case err != nil:
			return nil, err
		case e.Event == audit.KindSandbox && e.Op == "exec":
			words := strings.Fields(e.Target)
			if len(words) > 0 && (words[0] == command || words[0] == file) {
				sessions[e.Session] = true
			}
		case e.Event == audit.KindNetwork && e.Verdict == audit.Deny && sessions[e.Session]:
			host, _, _ := strings.Cut(e.Target, ":")
			if !slices.Contains(refused, host) {
				refused = append(refused, host)
			}
		}
	}
	return refused, nil
}

// presetsFor returns the presets that allow hosts, and the hosts that none allows.
func (p Place) presetsFor(refused []string) (presets, others []string) {
	all, _ := hosts.Presets(p.Base, p.User) // an error of a file is the definition's to report
	for _, host := range refused {
		known := false
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if !slices.ContainsFunc(all[name].Allow, func(r scope.HostRule) bool { return r.Host == host }) {
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
