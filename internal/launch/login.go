package launch

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/scopefs/scopefs/internal/login"
	"github.com/scopefs/scopefs/internal/programs"
	"github.com/scopefs/scopefs/scope/hosts"
)

// Login says which key or login of this user a run of a program has. The error says what is missing.
func (p Place) Login(name string) (string, error) {
	program, err := programs.Of(p.Base, p.User, name)
	if err != nil {
		return "", err
	}
	presets, errs := hosts.Presets(p.Base, p.User)
	if len(errs) > 0 {
		return "", errs[0]
	}
	var missing []string
	for _, network := range program.Networks {
		if presets[network] == nil {
			continue
		}
		for _, variable := range slices.Sorted(maps.Keys(presets[network].Credentials)) {
			from := presets[network].Credentials[variable].From
			if from.Env == "" || os.Getenv(from.Env) != "" {
				return fmt.Sprintf("%s: the key of preset %s (%s)", name, network, variable), nil
			}
			missing = append(missing, from.Env)
		}
	}
	l := loginOf(program)
	if l == nil {
		return "", fmt.Errorf("%s: no key, and scopefs knows no login of it: export %s", name, strings.Join(missing, " or "))
	}
	if err := l.Check(); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: the login in %s", name, filepath.Join(l.Home, l.File)), nil
}

// loginOf returns the login of a program in this user's HOME; nil: it has none that scopefs knows.
func loginOf(program *programs.Program) *login.Login {
	home, err := os.UserHomeDir()
	if err != nil || !filepath.IsAbs(home) || program.Login == nil {
		return nil
	}
	l := *program.Login
	l.Program, l.Home, l.After = program.Name, home, 1+len(program.Args)
	return &l
}
