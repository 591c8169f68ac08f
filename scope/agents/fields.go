package agents

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/scope"
)

// fields returns the keys of the definition of agent id. They set named if
// there is a name, add to env the line of each variable, and append to refs the patterns
// that must match something.
func (d *Definition) fields(file string, id scope.ID, named *bool, env map[string]int, refs *[]ref) map[string]field {
	name := nameField(&d.Name, id)
	keys := map[string]field{
		"name": func(n *yaml.Node) error {
			*named = true
			return name(n)
		},
		"display_name": proseField(&d.DisplayName),
		"description":  proseField(&d.Description),
		"dir":          dirField(&d.Dir),
		"protect":      protectField(&d.View, refs),
		"user":         userField(&d.User),
		"kind":         kindField(&d.Model.Kind),
		"model":        proseField(&d.Model.Name),
		"temperature":  temperatureField(&d.Model.Temperature),
		"max_turns":    numberField(&d.Model.MaxTurns, parseCount, "!!int"),
		"timeout":      numberField(&d.Model.Timeout, parseTimeout, "!!str"),
		"timeout_mins": numberField(&d.Model.Timeout, parseMinutes, "!!int", "!!float"),
		"identity":     oneOfField(&d.Identity, IdentityAgent, IdentityCaller),
		"network":      networkField(&d.Network, refs),
		"durable":      optionalField(&d.Durable),
		"sandbox":      mappingField(d.Keep.fields()),
		"env": func(n *yaml.Node) error {
			for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
				env[n.Content[i].Value] = n.Content[i].Line
			}
			return envField(&d.Env, nil)(n)
		},
		"view": mappingField(map[string]field{
			"access":    accessField(&d.View.Access),
			"paths":     pathsField(&d.View.Paths),
			"hardlinks": oneOfField(&d.View.Hardlinks, scope.HardlinksAllow, scope.HardlinksRead, scope.HardlinksDeny),
			"data":      oneOfField(&d.View.Data, DataPassthrough, DataMediated),
			"record":    namedField(&d.View.Record),
			"cache":     oneOfField(&d.View.Cache, CacheCoherent, CacheNone),

			"allow_other": switchField(&d.View.AllowOther),
			"xattrs":      switchField(&d.View.XAttrs),
		}),
		"limits": mappingField(map[string]field{
			"memory":  numberField(&d.Limits.Memory, parseMemory, "!!int", "!!str"),
			"pids":    numberField(&d.Limits.PIDs, parseCount, "!!int"),
			"cpu":     numberField(&d.Limits.CPU, parseCPU, "!!int", "!!float"),
			"timeout": numberField(&d.Limits.Timeout, parseTimeout, "!!str", "!!int"),

			"open_files":  numberField(&d.Limits.OpenFiles, parseOpenFiles, "!!int"),
			"links":       numberField(&d.Limits.Links, parseCount, "!!int"),
			"view_memory": numberField(&d.Limits.ViewMemory, parseViewMemory, "!!int", "!!str"),
		}),
	}
	maps.Copy(keys, d.reachFields(file, refs))
	return keys
}

// kindField reads the kind of an agent of gemini-cli.
func kindField(out *string) field {
	return func(n *yaml.Node) error {
		err := oneOfField(out, "local", "remote")(n)
		if err == nil && *out == "remote" {
			err = errors.New("remote agents run elsewhere: write local, or remove the key")
		}
		return err
	}
}

func temperatureField(out **float64) field {
	return func(n *yaml.Node) error {
		s, err := scalarOf(n, "a number from 0 to 2", "!!int", "!!float")
		if err != nil {
			return err
		}
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || !(v >= 0 && v <= 2) {
			return fmt.Errorf("%q is no temperature: want a number from 0 to 2", s)
		}
		*out = &v
		return nil
	}
}

func parseMinutes(s string) (time.Duration, error) {
	m, err := strconv.ParseFloat(s, 64)
	if err != nil || !(m >= 0 && m < 1e6) {
		return 0, fmt.Errorf("%q is no number of minutes", s)
	}
	return time.Duration(m * float64(time.Minute)), nil
}

func pathsField(out *[]scope.PathRule) field {
	return func(n *yaml.Node) error {
		return eachKey(n, func(pattern string, value *yaml.Node) error {
			r := scope.PathRule{Pattern: pattern}
			if value.Kind == yaml.MappingNode {
				return fmt.Errorf("pattern %q: takes no keys: remove quiet and access, and write %q: hide, read or write", pattern, pattern)
			}
			err := namedField(&r.Access)(value)
			if err == nil {
				err = r.Check()
			}
			if err != nil {
				return fmt.Errorf("pattern %q: %w", pattern, err)
			}
			*out = append(*out, r)
			return nil
		})
	}
}

func nameField(out *scope.ID, file scope.ID) field {
	return func(n *yaml.Node) error {
		if err := namedField(out)(n); err != nil {
			return err
		}
		if *out != file {
			return fmt.Errorf("%q is not what the file is named after: write %s, or rename the file", *out, file)
		}
		return nil
	}
}

func accessField(out *scope.Access) field {
	return func(n *yaml.Node) error {
		if err := namedField(out)(n); err != nil {
			return err
		}
		if *out == scope.Hide {
			return errors.New("hide would leave no view: want write or read")
		}
		return nil
	}
}

func switchField(out *bool) field {
	return func(n *yaml.Node) error {
		s, err := scalarOf(n, "true or false", "!!bool")
		if err == nil {
			*out, err = strconv.ParseBool(strings.ToLower(s))
		}
		return err
	}
}

// optionalField is switchField for a value that may be absent.
func optionalField(out **bool) field {
	return func(n *yaml.Node) error {
		*out = new(bool)
		return switchField(*out)(n)
	}
}

// dirField reads the path of a directory. What is there is checked when the view is
// mounted: the directory may be missing now.
func dirField(out *string) field {
	return func(n *yaml.Node) error {
		s, err := scalarOf(n, "the absolute path of a directory, or ~/PATH", "!!str")
		if err == nil {
			err = notExpanded(s)
		}
		if err != nil {
			return err
		}
		if rest, ok := strings.CutPrefix(s, "~/"); ok {
			home, err := home()
			if err != nil {
				return fmt.Errorf("%q: %w", s, err)
			}
			s = filepath.Join(home, rest)
		}
		if !filepath.IsAbs(s) || strings.ContainsRune(s, 0) {
			return fmt.Errorf("%q is no absolute path: write one, or one below ~/", s)
		}
		*out = filepath.Clean(s)
		return nil
	}
}

// inHome returns a path with HOME in place of a ~ at its beginning.
func inHome(path string) (string, error) {
	rest, ok := strings.CutPrefix(path, "~/")
	if !ok {
		return path, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return path, fmt.Errorf("%q: %w: write the whole path in place of ~", path, err)
	}
	return filepath.Join(home, rest), nil
}

// home returns the home directory of the user that reads the definition (HOME), without
// symbolic links: no part of a dir may be one.
func home() (string, error) {
	name, err := os.UserHomeDir()
	if err == nil {
		name, err = filepath.EvalSymlinks(name)
	}
	if err != nil {
		return "", fmt.Errorf("home directory: %w: write the whole path in place of ~", err)
	}
	return name, nil
}

func userField(out *string) field {
	return func(n *yaml.Node) error {
		s, err := scalarOf(n, "a user name, a uid or uid:gid", "!!str", "!!int")
		if err != nil {
			return err
		}
		if err := notExpanded(s); err != nil {
			return err
		}
		if !isUser(s) {
			return fmt.Errorf("%q is no user: want a name, a uid or uid:gid, numbers from 0 to %d", s, math.MaxUint32-1)
		}
		*out = s
		return nil
	}
}

func isUser(s string) bool {
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
		return false
	}
	if c := s[0]; c < '0' || c > '9' {
		return c != '-' && c != '+' && !strings.Contains(s, ":") // a name does not start like this, but a number out of range does
	}
	uid, gid, both := strings.Cut(s, ":")
	return isNumericID(uid) && (!both || isNumericID(gid))
}

// isNumericID reports whether s is a uid or gid. The greatest number is not:
// setresuid(2) reads it as "unchanged".
func isNumericID(s string) bool {
	n, err := strconv.ParseUint(s, 10, 32)
	return err == nil && n != math.MaxUint32
}

// numberField reads a value with parse. It must be greater than zero.
func numberField[T int | int64 | float64 | time.Duration](out *T, parse func(string) (T, error), tags ...string) field {
	return func(n *yaml.Node) error {
		s, err := scalarOf(n, "a number without quotes, or with a unit where there is one", tags...)
		if err != nil {
			return err
		}
		if *out, err = parse(s); err != nil {
			return err
		}
		if *out <= 0 {
			return fmt.Errorf("%q is not above zero: drop the key for the default", s)
		}
		return nil
	}
}

// The least values with which a shell and a few programs work in a view.
const (
	minOpenFiles  = 64
	minViewMemory = 1 << 20
)

func parseOpenFiles(s string) (int, error) {
	n, err := parseCount(s)
	if err == nil && n > 0 && n < minOpenFiles {
		err = fmt.Errorf("%q is too few for programs to run: want %d or more", s, minOpenFiles)
	}
	return n, err
}

func parseViewMemory(s string) (int64, error) {
	n, err := parseSize(s)
	if err == nil && n > 0 && n < minViewMemory {
		err = fmt.Errorf("%q is too little for a view: want 1MiB or more", s)
	}
	return n, err
}

// minMemory is slightly more than a sandbox with the file tools' worker needs;
// with less, it cannot start. minCPU is the kernel's minimum: one millisecond
// of each period of 100 milliseconds.
const (
	minMemory = 16 << 20
	minCPU    = 0.01
)

func parseMemory(s string) (int64, error) {
	n, err := parseSize(s)
	if err == nil && n > 0 && n < minMemory {
		err = fmt.Errorf("%q is too little for a sandbox to start: want 16MiB or more", s)
	}
	return n, err
}

func parseSize(s string) (int64, error) {
	digits, shift := s, 0
	for unit, bits := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30} {
		if d, ok := strings.CutSuffix(s, unit); ok {
			digits, shift = d, bits
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n > math.MaxInt64>>shift || n < 0 {
		return 0, fmt.Errorf("%q is no size: write bytes, or a whole number with KiB, MiB or GiB", s)
	}
	return n << shift, nil
}

func parseCount(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("%q is no count: write a whole number", s)
	}
	return n, nil
}

func parseCPU(s string) (float64, error) {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsInf(n, 0) || math.IsNaN(n) {
		return 0, fmt.Errorf("%q is no number of processors: write one like 1.5", s)
	}
	if n > 0 && n < minCPU {
		return 0, fmt.Errorf("%q is less than can be enforced: want 0.01 or more", s)
	}
	return n, nil
}

func parseTimeout(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("%q is no duration: write one like 90s or 10m", s)
	}
	return d, nil
}
