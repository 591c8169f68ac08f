package config

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/fields"
)

// Postgres is a PostgreSQL database, and the administrator that makes the schemas and roles
// of agents in it.
type Postgres struct {
	Network, Address string // tcp and HOST:PORT, or unix and the path of a socket
	TLS              string // the name in the server's certificate; "": no TLS
	User, Database   string
}

func (s *SQLStore) read(n *yaml.Node) error {
	var wrong fields.Problems
	wrong.Add(n.Line, storeField(map[string]fields.Field{
		"postgres": func(n *yaml.Node) error {
			var text string
			if err := fields.Text(&text)(n); err != nil {
				return err
			}
			p, err := parsePostgres(text)
			s.Postgres = &p
			return err
		},
		"password": fields.Credential(&s.Password),
		"dir":      absoluteField(&s.Dir),
		"drop":     fields.Switch(&s.Drop),
		"size":     fields.Number(&s.Size, fields.ParseSize, "!!int", "!!str"),
		"timeout":  fields.Duration(&s.Timeout),
	})(n))
	switch {
	case s.Postgres != nil && s.Dir != "":
		wrong.Add(n.Line, errors.New("dir: is for SQLite: remove it, or postgres"))
	case s.Postgres != nil && s.Password == nil:
		wrong.Add(n.Line, errors.New("password: is missing: write that of the user in postgres"))
	case s.Postgres == nil && s.Password != nil:
		wrong.Add(n.Line, errors.New("password: is for a server: remove it, or write postgres"))
	}
	return wrong.Err()
}

// parsePostgres reads the URL of a database. No error has a part of the URL, which may hold a
// password.
func parsePostgres(text string) (p Postgres, err error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return p, errors.New("is no URL of a database: write postgres://USER@HOST/DATABASE")
	}
	if _, is := u.User.Password(); is {
		return p, errors.New("holds a password: write that under password")
	}
	query := u.Query()
	for key := range query {
		if key != "host" && key != "port" && key != "sslmode" {
			return p, fmt.Errorf("has %.40q: write host, port and sslmode alone after the question mark", key)
		}
	}
	p.User, p.Database = u.User.Username(), strings.TrimPrefix(u.Path, "/")
	host := cmp.Or(u.Hostname(), query.Get("host"))
	port := cmp.Or(u.Port(), query.Get("port"), "5432")
	if p.User == "" || p.Database == "" || host == "" {
		return p,
			errors.New("names no user, host or database: write postgres://USER@HOST/DATABASE, or postgres://USER@/DATABASE?host=/DIR for a socket")
	}
	p.Network, p.Address = "tcp", net.JoinHostPort(host, port)
	if strings.HasPrefix(host, "/") {
		p.Network, p.Address = "unix", path.Join(host, ".s.PGSQL."+port)
	}
	near := p.Network == "unix" || credential.Loopback(host)
	switch mode := query.Get("sslmode"); {
	case mode == "disable" && !near:
		return p, errors.New("sslmode: without TLS others could read and change what agents do: write verify-full")
	case mode == "verify-full" && p.Network == "unix":
		return p, errors.New("sslmode: a socket has no TLS: remove it")
	case mode == "verify-full", mode == "" && !near:
		p.TLS = host
	case mode != "" && mode != "disable":
		return p, errors.New("sslmode: is neither verify-full nor disable: write one of them")
	}
	return p, nil
}
