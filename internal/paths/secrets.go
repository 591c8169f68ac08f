package paths

import (
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/scopefs/scopefs/scope"
)

// secrets are the rules with which a new project seals its secrets. A sealed file that git tracks is no change to git. Each pattern matches a name in any directory, so
// that no rule prevents the move of a directory, and leaves names alone that are not secret by their nature: templates of
// dotenv files, the bundles of CAs that packages install (cacert.pem, roots.pem), public keys and sources such as
// id_utils.go. The strictest rule holds, so that a pattern cannot have exceptions: it spells out the other names.
var secrets = []struct{ pattern, comment string }{
	{"**/.env", ""},
	{"**/.env.{[^est]*,e[^x]*,s[^a]*,sa[^m]*,t[^e]*,te[^m]*}", "not .env.example, .env.sample, .env.template"},
	{"**/{[^cr]*,c,c[^a]*,ca[^c]*,r,r[^o]*,roo[^t]*,root,root[^s]*}.pem", "not cacert.pem, roots.pem"},
	{"**/id_{rsa,dsa,ecdsa,ed25519}{,_sk}", "private keys of SSH"},
}

// SecretPatterns returns the patterns that a new project seals.
func SecretPatterns() (all []string) {
	for _, s := range secrets {
		all = append(all, s.pattern)
	}
	return all
}

// secretsText returns the rules in a definition, below view.
func secretsText() string {
	var text strings.Builder
	text.WriteString("  paths: # secrets: in no listing, and the agent can neither read nor create them\n")
	for _, s := range secrets {
		text.WriteString(`    "` + s.pattern + `": seal`)
		if s.comment != "" {
			text.WriteString(" # " + s.comment)
		}
		text.WriteString("\n")
	}
	return text.String()
}

// maxSecretEntries limits the entries that Secrets reads.
const maxSecretEntries = 10_000

// Secrets returns the files of the project that a new definition hides, as far as the first entries of its directories
// tell. It does not look into repositories and node_modules. dotenv reports whether a file is the template of a dotenv
// file, which programs of the project would copy.
func (p Project) Secrets() (hidden []string, dotenv bool) {
	var spec scope.PolicySpec
	for _, s := range secrets {
		spec.Paths = append(spec.Paths, scope.PathRule{Pattern: s.pattern, Access: scope.Seal})
	}
	policy, err := scope.Compile(spec)
	if err != nil {
		return nil, false // the definition with these rules does not load, and says so
	}
	left := maxSecretEntries
	_ = filepath.WalkDir(p.Dir, func(name string, entry fs.DirEntry, err error) error {
		left--
		rel, relErr := filepath.Rel(p.Dir, name)
		switch {
		case left < 0:
			return fs.SkipAll
		case err != nil || relErr != nil || name == p.Dir: // what cannot be read cannot be listed here
			return nil
		case !policy.File(scope.OpOpen, rel).Allow:
			hidden = append(hidden, rel)
		case strings.HasPrefix(entry.Name(), ".env."):
			dotenv = true
		case entry.Name() != "node_modules" && !strings.HasSuffix(entry.Name(), ".git"):
			return nil
		}
		if entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
	return hidden, dotenv
}
