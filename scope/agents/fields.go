package agents

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
	"github.com/scopefs/scopefs/scope/hosts"
)

// fields returns the keys of the definition of agent id. They set named if
// there is a name, add to env the line of each variable, and append to refs the patterns
// that must match something.
func (d *Definition) fields(file string, id scope.ID, named *bool, env map[string]int, refs *[]catalog.Ref) map[string]fields.Field {
	name := nameField(&d.Name, id)
	keys := map[string]fields.Field{
		"name": func(n *yaml.Node) error {
			*named = true
			return name(n)
		},
		"display_name": fields.Prose(&d.DisplayName),
		"description":  fields.Prose(&d.Description),
		"dir":          dirField(&d.Dir),
		"branch":       branchField(&d.Branch),
		"protect":      protectField(&d.View, refs),
		"user":         fields.User(&d.User),
		"kind":         kindField(&d.Model.Kind),
		"model":        fields.Prose(&d.Model.Name),
		"temperature":  temperatureField(&d.Model.Temperature),
		"max_turns":    fields.Number(&d.Model.MaxTurns, fields.ParseCount, "!!int"),
		"timeout":      fields.Number(&d.Model.Timeout, fields.ParseDuration, "!!str"),
		"timeout_mins": fields.Number(&d.Model.Timeout, parseMinutes, "!!int", "!!float"),
		"identity":     fields.OneOf(&d.Identity, IdentityAgent, IdentityCaller),
		"placement":    fields.OneOf(&d.Placement, PlacementOne),
		"network":      hosts.OwnField(&d.Network, refs),
		"durable":      fields.Optional(&d.Durable),
		"sandbox":      d.sandboxField(),
		"ssh_keys":     keysField(&d.SSHKeys),
		"env": func(n *yaml.Node) error {
			for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
				env[n.Content[i].Value] = n.Content[i].Line
			}
			return fields.Env(&d.Env, nil)(n)
		},
		"view": fields.Mapping(map[string]fields.Field{
			"access":    accessField(&d.View.Access),
			"paths":     pathsField(&d.View.Paths),
			"secrets":   secretsField(&d.View.Paths),
			"hardlinks": fields.OneOf(&d.View.Hardlinks, scope.HardlinksAllow, scope.HardlinksRead, scope.HardlinksDeny),
			"data":      fields.OneOf(&d.View.Data, DataPassthrough, DataMediated),
			"record":    fields.Named(&d.View.Record),
			"cache":     fields.OneOf(&d.View.Cache, CacheAuto, CacheCoherent, CacheNone),
			"changes":   changesField(&d.View.Changes),
			"roots":     rootsField(&d.View.Roots),

			"allow_other": fields.Switch(&d.View.AllowOther),
			"xattrs":      fields.Switch(&d.View.XAttrs),
		}),
		"history": fields.Mapping(d.History.fields()),
		"limits": fields.Mapping(map[string]fields.Field{
			"memory":  fields.Number(&d.Limits.Memory, fields.ParseMemory, "!!int", "!!str"),
			"pids":    fields.Number(&d.Limits.PIDs, fields.ParseCount, "!!int"),
			"cpu":     fields.Number(&d.Limits.CPU, fields.ParseCPU, "!!int", "!!float"),
			"timeout": fields.Number(&d.Limits.Timeout, fields.ParseDuration, "!!str", "!!int"),

			"open_files": fields.Number(&d.Limits.OpenFiles, fields.ParseOpenFiles, "!!int"),
			"links":      fields.Number(&d.Limits.Links, fields.ParseCount, "!!int"),
			"disk":       fields.Number(&d.Limits.Disk, fields.ParseDisk, "!!int", "!!str"),
			"files":      fields.Number(&d.Limits.Files, fields.ParseFiles, "!!int", "!!str"),

			"view_memory": fields.Number(&d.Limits.ViewMemory, fields.ParseViewMemory, "!!int", "!!str"),
		}),
	}
	maps.Copy(keys, d.reachFields(file, refs))
	return keys
}

// kindField reads the kind of an agent of gemini-cli.
func kindField(out *string) fields.Field {
	return func(n *yaml.Node) error {
		err := fields.OneOf(out, "local", "remote")(n)
		if err == nil && *out == "remote" {
			err = errors.New("remote agents run elsewhere: write local, or remove the key")
		}
		return err
	}
}

func temperatureField(out **float64) fields.Field {
	return func(n *yaml.Node) error {
		s, err := fields.Scalar(n, "a number from 0 to 2", "!!int", "!!float")
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

func pathsField(out *[]scope.PathRule) fields.Field {
	return func(n *yaml.Node) error {
		return fields.EachKey(n, func(pattern string, value *yaml.Node) error {
			r := scope.PathRule{Pattern: pattern}
			if value.Kind == yaml.MappingNode {
				return fmt.Errorf("pattern %q: takes no keys: remove quiet and access, and write %q: hide, ask, read or write", pattern, pattern)
			}
			err := fields.Named(&r.Access)(value)
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

// secretsField adds the rules of the files that hold secrets by their nature.
func secretsField(out *[]scope.PathRule) fields.Field {
	return func(n *yaml.Node) error {
		var access scope.Access
		if err := fields.Named(&access)(n); err != nil {
			return err
		}
		if access != scope.Seal && access != scope.Hide {
			return fmt.Errorf("%v would keep no secret: want seal or hide", access)
		}
		*out = append(*out, scope.SecretRules(access)...)
		return nil
	}
}

func nameField(out *scope.ID, file scope.ID) fields.Field {
	return func(n *yaml.Node) error {
		if err := fields.Named(out)(n); err != nil {
			return err
		}
		if *out != file {
			return fmt.Errorf("%q is not what the file is named after: write %s, or rename the file", *out, file)
		}
		return nil
	}
}

func accessField(out *scope.Access) fields.Field {
	return func(n *yaml.Node) error {
		if err := fields.Named(out)(n); err != nil {
			return err
		}
		switch {
		case *out >= scope.Seal:
			return fmt.Errorf("%v would leave no view: want write or read", *out)
		case *out == scope.Ask:
			return errors.New("ask is for view.paths and view.roots: want write or read")
		}
		return nil
	}
}

// rootAccess is the access of a root: an access, or ask, and then perhaps read besides.
type rootAccess struct {
	scope.Access
	read bool
}

// rootAccessField reads the access of a root: write, hold, read, ask, or [read, ask].
func rootAccessField(out *rootAccess) fields.Field {
	return func(n *yaml.Node) error {
		if n.Kind == yaml.SequenceNode {
			var words []string
			if err := fields.Texts(&words, "access", nil)(n); err != nil {
				return err
			}
			if slices.Sort(words); !slices.Equal(words, []string{"ask", "read"}) {
				return fmt.Errorf("%q: of several accesses only [read, ask] go together", words)
			}
			*out = rootAccess{scope.Ask, true}
			return nil
		}
		if fields.Named(&out.Access)(n) == nil && out.Access == scope.Ask {
			return nil
		}
		if err := accessField(&out.Access)(n); err != nil {
			return fmt.Errorf("%w; a root may have ask or [read, ask], too", err)
		}
		return nil
	}
}

// dirField reads the path of a directory. What is there is checked when the view is
// mounted: the directory may be missing now.
func dirField(out *string) fields.Field {
	return func(n *yaml.Node) error {
		s, err := fields.Scalar(n, "the absolute path of a directory, or ~/PATH", "!!str")
		if err == nil {
			err = fields.NotExpanded(s)
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
