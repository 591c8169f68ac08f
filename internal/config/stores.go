package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/internal/header"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
)

// Stores are the shared stores that scopefs.yaml configures, under the key
// stores. A nil store is not configured, and its tools do not exist.
type Stores struct {
	KV       *KVStore
	SQL      *SQLStore
	Metrics  *MetricsStore
	Messages *MessagesStore
	Services map[string]Service // of http_request; by name
	Notify   map[string]Channel // of notify; by name
	Objects  *ObjectStore
	Programs map[string]*StoreProgram // by name
}

// KVStore is the store of kv_get and the others: an embedded database, or a
// Redis or Valkey server.
type KVStore struct {
	Redis    string             // HOST:PORT or the absolute path of a socket; "": embedded
	TLS      bool               // to the server
	User     string             // at the server
	Password *credential.Source // nil: none
	Keys     int                // of one agent; 0: the default
	Size     int64              // bytes of one agent's values; 0: the default
}

// SQLStore is the store of sql_query and the others: one SQLite database for
// each agent, or a schema for each in one PostgreSQL database.
type SQLStore struct {
	Postgres *Postgres          // nil: SQLite
	Password *credential.Source // of the administrator of Postgres
	Dir      string             // of the databases, agent_{id}.db; "": the daemon's own
	Drop     bool               // agents may drop tables and indexes
	Size     int64              // bytes of a database; 0: the default
	Timeout  time.Duration      // of a statement; 0: the default
}

// Service is an HTTP service that agents may send requests to.
type Service struct {
	URL        string
	Agents     agents.IDs // that may use it; nil: every one
	Methods    []string   // nil: GET and HEAD
	Paths      []string   // patterns below URL; nil: all
	Addresses  []netip.Prefix
	Credential *credential.Source // nil: none
	Header     string             // for the credential; "": Authorization
	Prefix     string             // before the credential
	Timeout    time.Duration      // 0: the default
}

// Allows reports whether an agent may use the service.
func (s Service) Allows(p scope.Principal) bool {
	return s.Agents == nil || s.Agents.Holds(p)
}

func (s *Stores) fields() map[string]fields.Field {
	return map[string]fields.Field{
		"kv": func(n *yaml.Node) error {
			s.KV = &KVStore{}
			return storeField(s.KV.fields())(n)
		},
		"sql": func(n *yaml.Node) error {
			s.SQL = &SQLStore{}
			return s.SQL.read(n)
		},
		"notify": named(&s.Notify, serverName("channel"), (*Channel).read),
		"objects": func(n *yaml.Node) error {
			s.Objects = &ObjectStore{}
			return fields.Mapping(s.Objects.fields())(n)
		},
		"metrics": metricsField(&s.Metrics),
		"messages": func(n *yaml.Node) error {
			s.Messages = &MessagesStore{}
			return storeField(s.Messages.fields())(n)
		},
		"services": named(&s.Services, serverName("service"), (*Service).read),
	}
}

// named reads values by names that check accepts.
func named[T any](out *map[string]T, check func(name string) error, read func(out *T, name string, value *yaml.Node) error) fields.Field {
	return func(n *yaml.Node) error {
		*out = map[string]T{}
		return fields.EachKey(n, func(name string, value *yaml.Node) error {
			err := check(name)
			if err == nil {
				var one T
				err = read(&one, name, value)
				(*out)[name] = one
			}
			return err
		})
	}
}

// serverName returns the check of the names of one kind.
func serverName(kind string) func(string) error {
	return func(name string) error {
		if !catalog.IsServerName(name) {
			return fmt.Errorf("%q is no name of a %s: write letters, digits, '-' and '_'", name, kind)
		}
		return nil
	}
}

// storeField reads the settings of a store. An empty value means the defaults.
func storeField(keys map[string]fields.Field) fields.Field {
	read := fields.Mapping(keys)
	return func(n *yaml.Node) error {
		if n.Tag == "!!null" {
			return nil
		}
		return read(n)
	}
}

func (s *KVStore) fields() map[string]fields.Field {
	return map[string]fields.Field{
		"redis": func(n *yaml.Node) error {
			if err := fields.Text(&s.Redis)(n); err != nil {
				return err
			}
			if host, port, err := net.SplitHostPort(s.Redis); !strings.HasPrefix(s.Redis, "/") && (err != nil || host == "" || port == "") {
				return fmt.Errorf("%q is no address: write HOST:PORT or the absolute path of a socket", s.Redis)
			}
			return nil
		},
		"tls":      fields.Switch(&s.TLS),
		"user":     fields.Text(&s.User),
		"password": fields.Credential(&s.Password),
		"keys":     fields.Number(&s.Keys, fields.ParseCount, "!!int"),
		"size":     fields.Number(&s.Size, fields.ParseSize, "!!int", "!!str"),
	}
}

func (s *Service) read(_ string, n *yaml.Node) error {
	var wrong fields.Problems
	wrong.Add(n.Line, fields.Mapping(map[string]fields.Field{
		"url":        fields.Text(&s.URL),
		"agents":     fields.Texts((*[]string)(&s.Agents), "agents", catalog.CheckName),
		"methods":    fields.Texts(&s.Methods, "methods", nil),
		"paths":      fields.Texts(&s.Paths, "paths", nil),
		"addresses":  prefixesField(&s.Addresses),
		"credential": fields.Credential(&s.Credential),
		"header":     fields.Text(&s.Header),
		"prefix":     fields.Text(&s.Prefix),
		"timeout":    fields.Duration(&s.Timeout),
	})(n))
	if u, err := url.Parse(s.URL); err != nil || u.Hostname() == "" {
		wrong.Add(n.Line, errors.New("url: is no address: write https://HOST/PATH"))
	}
	wrong.Add(n.Line, header.Check(s.Header, s.Prefix))
	return wrong.Err()
}

// prefixesField reads addresses and ranges of addresses.
func prefixesField(out *[]netip.Prefix) fields.Field {
	return func(n *yaml.Node) error {
		var texts []string
		if err := fields.Texts(&texts, "addresses", nil)(n); err != nil {
			return err
		}
		for _, text := range texts {
			prefix, err := netip.ParsePrefix(text)
			if ip, ipErr := netip.ParseAddr(text); ipErr == nil {
				prefix, err = netip.PrefixFrom(ip, ip.BitLen()), nil
			}
			if err != nil {
				return fmt.Errorf("%q is no address or range: write one like 10.0.0.5 or 10.0.0.0/24", text)
			}
			*out = append(*out, prefix)
		}
		return nil
	}
}
