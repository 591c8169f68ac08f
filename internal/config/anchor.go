package config

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/paths"
	"github.com/scopefs/scopefs/internal/witness"
	"github.com/scopefs/scopefs/scope/agents"
)

// Anchor takes signed heads of the log elsewhere. One of its kinds is set.
type Anchor struct {
	Name  string
	Every time.Duration // the shortest time from one head to the next; default a minute

	Command []string // a command of the operator's, on its standard input

	Witness string // the URL of its submission prefix: c2sp.org/tlog-witness
	Key     string // of the witness: see witness.NewVerifier

	File string // absolute; heads are appended

	Syslog string // as that of a Stream

	Git    string // a remote: ssh://, https:// or file://, or USER@HOST:PATH
	Branch string // "": the name of the log
	User   string // of the credential; "": git

	Credential *credential.Source // of git by https; nil: none
}

const anchorEvery = time.Minute

func (a *Anchor) fields() map[string]fields.Field {
	a.Every = anchorEvery
	return map[string]fields.Field{
		"name": fields.Text(&a.Name), "every": fields.Duration(&a.Every), "command": command(&a.Command, "command"),
		"witness": fields.Text(&a.Witness), "key": fields.Text(&a.Key), "file": fields.Text(&a.File), "syslog": fields.Text(&a.Syslog),
		"git": fields.Text(&a.Git), "branch": fields.Text(&a.Branch), "user": fields.Text(&a.User),
		"credential": fields.Credential(&a.Credential),
	}
}

func (a *Anchor) name() string { return a.Name }

func (a *Anchor) check() error {
	kinds := 0
	for _, is := range []bool{len(a.Command) > 0, a.Witness != "", a.File != "", a.Syslog != "", a.Git != ""} {
		if is {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return errors.New("write one of command, witness, file, syslog and git")
	case a.Witness == "" && a.Key != "":
		return errors.New("key is of a witness: remove it")
	case a.Git == "" && (a.Branch != "" || a.User != "" || a.Credential != nil):
		return errors.New("branch, user and credential are of git: remove them")
	case a.Witness != "":
		if err := agents.CheckURL(a.Witness); err != nil {
			return fmt.Errorf("witness: %w", err)
		}
		_, err := witness.NewVerifier(a.Key)
		return err
	case a.File != "":
		if !filepath.IsAbs(a.File) || filepath.Clean(a.File) != a.File || strings.ContainsRune(a.File, 0) || a.File == "/" {
			return fmt.Errorf("file: %q is no absolute path of a file: correct it", a.File)
		}
	case a.Syslog != "":
		_, err := a.Receiver().URL()
		return err
	case a.Git != "":
		return a.checkGit()
	}
	return nil
}

// Receiver returns the receiver of syslog as that of a stream.
func (a Anchor) Receiver() Stream { return Stream{Name: a.Name, Syslog: a.Syslog} }

var (
	gitPath = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*@[A-Za-z0-9][A-Za-z0-9.-]*:[A-Za-z0-9~/][^\x00-\x1f]*$`)
	}) // USER@HOST:PATH
	gitBranch = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./-]*$`) })
)

func (a Anchor) checkGit() error {
	u, err := url.Parse(a.Git)
	switch {
	case gitPath().MatchString(a.Git):
		u = &url.URL{Scheme: "ssh"}
	case err != nil, u.Scheme == "file" && (u.Host != "" || !filepath.IsAbs(u.Path)), u.Scheme != "file" && u.Hostname() == "",
		!slices.Contains([]string{"ssh", "https", "http", "file"}, u.Scheme), strings.HasPrefix(u.Hostname(),
			"-"), u.RawQuery != "", u.Fragment != "":
		return errors.New("git: is no address: write ssh://USER@HOST/PATH, https://HOST/PATH or file:///PATH")
	}
	_, password := u.User.Password()
	switch {
	case password || u.Scheme == "https" && u.User != nil:
		return errors.New("git: the address has a user: write user and credential")
	case u.Scheme == "http" && !credential.Loopback(u.Hostname()):
		return errors.New("git: is http, which only loopback may be: write https")
	case a.Credential != nil && u.Scheme != "https" && u.Scheme != "http":
		return errors.New("credential: is for https: ssh takes the key of the daemon's user")
	case a.User != "" && (a.Credential == nil || strings.ContainsAny(a.User, ": \x00")):
		return errors.New("user: is of a credential, and has no colon: correct it")
	case a.Branch != "" && (!gitBranch().MatchString(a.Branch) || strings.Contains(a.Branch, "..") || strings.Contains(a.Branch, "//") ||
		strings.Contains(a.Branch, "/.") || strings.HasSuffix(a.Branch, "/") || strings.HasSuffix(a.Branch, ".") ||
		strings.HasSuffix(a.Branch, ".lock")):
		return fmt.Errorf("branch: %q is no name of a branch: correct it", a.Branch)
	}
	return nil
}

// checkAnchors returns an error for a file that the daemon's own directories hold. It does not look at the file: its file system
// may not answer.
func checkAnchors(p Paths, l LogLimits) error {
	for _, a := range l.Anchors {
		for _, own := range append(p.Own(), p.Base, p.State, p.Run) {
			for _, own := range []string{filepath.Clean(own), paths.Real(own)} {
				if own != "" && own != "." && a.File != "" && strings.HasPrefix(a.File+"/", strings.TrimSuffix(own, "/")+"/") {
					return fmt.Errorf("anchors: %s: file: %s is in %s: name a file on another file system", a.Name, a.File, own)
				}
			}
		}
	}
	return nil
}
