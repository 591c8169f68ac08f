package agents

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope/hosts"
)

// Home selects the home directory of an agent's sandboxes.
type Home string

// The home directories.
const (
	HomeLasting   Home = "lasting"   // of the agent, in {state}/home; the default with caches
	HomeTemporary Home = "temporary" // of each sandbox, which ends with it; the default without caches
)

// Kept names a program: its cache outlives an agent's sandboxes.
type Kept string

// The caches that scopefs knows.
const (
	KeptNPM   Kept = "npm"
	KeptPIP   Kept = "pip"
	KeptGo    Kept = "go"
	KeptCargo Kept = "cargo"
)

// Keep says what outlives the sandboxes of an agent, outside its view.
type Keep struct {
	Home   Home   // "" is the host's setting
	Caches []Kept // nil is the host's setting
}

// Or returns k, with what it leaves open taken from host.
func (k Keep) Or(host Keep) Keep {
	if k.Home == "" {
		k.Home = host.Home
	}
	if k.Caches == nil {
		k.Caches = host.Caches
	}
	if k.Home == "" {
		k.Home = HomeTemporary
		if len(k.Caches) > 0 {
			k.Home = HomeLasting
		}
	}
	return k
}

// Fields returns the readers of the keys.
func (k *Keep) Fields() map[string]fields.Field {
	return map[string]fields.Field{
		"home": fields.OneOf(&k.Home, HomeLasting, HomeTemporary),
		"caches": func(n *yaml.Node) error {
			k.Caches = []Kept{}
			return fields.EachItem(n, func(item *yaml.Node) error {
				var c Kept
				if err := fields.OneOf(&c, KeptNPM, KeptPIP, KeptGo, KeptCargo)(item); err != nil {
					return fmt.Errorf("caches: %w", err)
				}
				if slices.Contains(k.Caches, c) {
					return fmt.Errorf("caches: %q is here twice: remove one", c)
				}
				k.Caches = append(k.Caches, c)
				return nil
			})
		},
	}
}

// sandboxField reads the key sandbox.
func (d *Definition) sandboxField() fields.Field {
	keys := d.Keep.Fields()
	keys["devices"] = fields.Texts(&d.Devices, "devices", func(name string) error {
		switch {
		case slices.Contains(d.Devices, name):
			return fmt.Errorf("%q is here twice: remove one", name)
		case slices.Contains(deviceNames, name) || strings.HasPrefix(name, "/dev/") && path.Clean(name) == name:
			return nil
		}
		return fmt.Errorf("%q is no device: write %s, or a path below /dev", name, strings.Join(deviceNames, ", "))
	})
	return fields.Mapping(keys)
}

// KeyUse says how an agent uses one of the user's SSH keys.
type KeyUse string

// The uses of a key.
const (
	KeyAllow KeyUse = "allow"
	KeyAsk   KeyUse = "ask" // the operator decides about each login and each signature
	KeyDeny  KeyUse = "deny"
)

// keysField reads the uses of keys by their fingerprints.
func keysField(out *map[string]KeyUse) fields.Field {
	return func(n *yaml.Node) error {
		*out = map[string]KeyUse{}
		return fields.EachKey(n, func(name string, value *yaml.Node) error {
			sum, ok := strings.CutPrefix(name, "SHA256:")
			if raw, err := base64.RawStdEncoding.DecodeString(sum); !ok || err != nil || len(raw) != sha256.Size {
				return fmt.Errorf("%q is no fingerprint: write SHA256:..., as ssh-add -l prints it", name)
			}
			var use KeyUse
			if err := fields.OneOf(&use, KeyAllow, KeyAsk, KeyDeny)(value); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			(*out)[name] = use
			return nil
		})
	}
}

// deviceNames stand for several devices of a host.
var deviceNames = []string{"gpu", "nvidia", "dri", "kvm"}

// ownedVariables are variables with which a sandbox leads programs to
// its proxy and its certificates.
var ownedVariables = []string{
	"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "NODE_USE_ENV_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS",
	"REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT",
	"GRPC_PROXY", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
}

// checkEnv returns an error for variables of an agent's sandboxes that would break them
// without a word. lines has the line of each.
func checkEnv(env map[string]string, lines map[string]int, n hosts.Network) error {
	var wrong fields.Problems
	for _, name := range slices.Sorted(maps.Keys(env)) {
		_, credential := n.Credentials[name]
		var why string
		switch {
		case strings.HasPrefix(name, "LD_"):
			why = "changes every program of the sandbox: set it for a command (scopefs run -e)"
		case strings.HasPrefix(name, "SCOPEFS_"):
			why = "is set by scopefs: choose another name"
		case name == "HOME":
			why = "is set by sandbox: {home}: use that"
		case name == "PATH" && !isSystemPath(env[name]):
			why = "has no /usr/bin, or a directory that is not absolute: write absolute directories, and /usr/bin among them"
		case n.Kind != hosts.HostNetwork && slices.Contains(ownedVariables, strings.ToUpper(name)):
			why = "leads programs to the proxy of network or its certificates: remove it"
		case credential:
			why = "is the variable of a credential of network: remove one"
		}
		if why != "" {
			wrong.Add(lines[name], fmt.Errorf("env: %s %s", name, why)) // no colon after the name: see Env
		}
	}
	return wrong.Err()
}

// isSystemPath reports whether a search path finds the programs of the system.
func isSystemPath(list string) bool {
	dirs := strings.Split(list, ":")
	return slices.Contains(dirs, "/usr/bin") && !slices.ContainsFunc(dirs, func(dir string) bool { return !path.IsAbs(dir) })
}
