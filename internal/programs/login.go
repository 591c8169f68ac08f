package programs

import (
	"fmt"
	"net/url"
	"path/filepath"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/login"
)

// loginField reads where a program has its login.
func loginField(out **login.Login) fields.Field {
	return func(n *yaml.Node) error {
		l := &login.Login{}
		err := fields.Mapping(map[string]fields.Field{
			"file": fields.Text(&l.File), "remedy": fields.Text(&l.Remedy), "access": fields.Text(&l.Access), "refresh": fields.Text(&l.Refresh),
			"expires": fields.Text(&l.Expires), "id": fields.Text(&l.ID), "claims": fields.Texts(&l.Claims, "claims", nil),
			"keep": fields.Texts(&l.Keep, "keep", nil), "set": func(n *yaml.Node) error { return n.Decode(&l.Set) },
			"url": fields.Text(&l.URL), "client": fields.Text(&l.Client), "args": fields.Texts(&l.Args, "args", nil), "env": fields.Env(&l.Env, nil),
		})(n)
		if err != nil {
			return fmt.Errorf("login: %w", err)
		}
		*out = l
		return checkLogin(l)
	}
}

func checkLogin(l *login.Login) error {
	for key, text := range map[string]string{"file": l.File, "remedy": l.Remedy, "access": l.Access,
		"refresh": l.Refresh, "url": l.URL, "client": l.Client} {
		if text == "" {
			return fmt.Errorf("login: has no %s: write it", key)
		}
	}
	if !filepath.IsLocal(l.File) {
		return fmt.Errorf("login: file: %q is not below HOME: write a relative path", l.File)
	}
	u, err := url.Parse(l.URL)
	if err != nil || u.Scheme != "https" && (u.Scheme != "http" || !credential.Loopback(u.Hostname())) {
		return fmt.Errorf("login: url: %q: write https://HOST/PATH", l.URL)
	}
	return nil
}
