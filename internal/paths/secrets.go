package paths

import (
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/scopefs/scopefs/scope"
)

// secretsText is the rule in a definition, below view, that seals secrets.
const secretsText = "  secrets: seal # .env, *.pem and private keys of SSH: in no listing, and the agent can neither read nor create them\n"

// patternsText is what versions up to November 2026 have written in place of secretsText.
func patternsText() string {
	comments := []string{"", " # not .env.example, .env.sample, .env.template", " # not cacert.pem, roots.pem", " # private keys of SSH"}
	text := "  paths: # secrets: in no listing, and the agent can neither read nor create them\n"
	for i, r := range scope.SecretRules(scope.Seal) {
		text += `    "` + r.Pattern + `": seal` + comments[i] + "\n"
	}
	return text
}

// maxSecretEntries limits the entries that Secrets reads.
const maxSecretEntries = 10_000

// Secrets returns the files of the project that a new definition hides, as far as the first entries of its directories
// tell. It does not look into repositories and node_modules. dotenv reports whether a file is the template of a dotenv
// file, which programs of the project would copy.
func (p Project) Secrets() (hidden []string, dotenv bool) {
	policy, err := scope.Compile(scope.PolicySpec{Paths: scope.SecretRules(scope.Seal)})
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
