package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/catalog"
)

// MessagesStore is the store of publish and subscribe: an embedded NATS server,
// or an outside one.
type MessagesStore struct {
	URL      string              // nats://HOST:PORT or tls://HOST:PORT; "": embedded
	User     string              // at the server; "": the password is a token
	Password *credential.Source  // nil: none
	Messages int                 // of one agent, channel or inbox; 0: the default
	Size     int64               // bytes of them; 0: the default
	Age      time.Duration       // of a message; 0: the default
	Channels map[string]Patterns // who publishes and reads on a channel; by its name
	Inboxes  map[string]Patterns // who publishes to an agent's inbox; by the agent's id
}

// Patterns are patterns of ids of agents.
type Patterns []string

// Allow reports whether one of the patterns matches an agent's id.
func (p Patterns) Allow(id string) bool {
	return slices.ContainsFunc(p, func(one string) bool { return catalog.Wild(one, id) })
}

// minMessages is the least size of a place, in bytes: some messages must fit.
const minMessages = 1 << 20

func (s *MessagesStore) fields() map[string]fields.Field {
	return map[string]fields.Field{
		"url":      fields.Text(&s.URL),
		"user":     fields.Text(&s.User),
		"password": fields.Credential(&s.Password),
		"messages": fields.Number(&s.Messages, fields.ParseCount, "!!int"),
		"size": func(n *yaml.Node) error {
			err := fields.Number(&s.Size, fields.ParseSize, "!!int", "!!str")(n)
			if err == nil && s.Size < minMessages {
				err = errors.New("is below 1MiB: write more")
			}
			return err
		},
		"age": fields.Duration(&s.Age),
		"channels": grantedField(&s.Channels, func(name string) error {
			if !catalog.IsServerName(name) || strings.Contains(name, ".") {
				return fmt.Errorf("%q is no name of a channel: write letters, digits, '-' and '_'", name)
			}
			return nil
		}),
		"inboxes": grantedField(&s.Inboxes, func(id string) error {
			_, err := scope.ParseID(id)
			return err
		}),
	}
}

// grantedField reads lists of patterns of agents by name.
func grantedField(out *map[string]Patterns, check func(name string) error) fields.Field {
	return func(n *yaml.Node) error {
		*out = map[string]Patterns{}
		return fields.EachKey(n, func(name string, value *yaml.Node) error {
			if err := check(name); err != nil {
				return err
			}
			var who []string
			err := fields.Texts(&who, name, catalog.CheckName)(value)
			(*out)[name] = who
			if err != nil && value.Kind != yaml.SequenceNode {
				err = fmt.Errorf("%q %w", name, err) // the errors of a list's items quote the item
			}
			return err
		})
	}
}
