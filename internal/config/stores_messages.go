package config

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/internal/fields"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/agents"
	"github.com/scopefs/scopefs/scope/catalog"
)

// MessagesStore is the store of publish and subscribe: an embedded NATS server,
// or an outside one.
type MessagesStore struct {
	URL      string                // nats://HOST:PORT or tls://HOST:PORT; "": embedded
	User     string                // at the server; "": the password is a token
	Password *credential.Source    // nil: none
	Messages int                   // of one agent, channel or inbox; 0: the default
	Size     int64                 // bytes of them; 0: the default
	Age      time.Duration         // of a message; 0: the default
	Channels map[string]agents.IDs // who publishes and reads on a channel; by its name
	Inboxes  map[string]agents.IDs // who publishes to an agent's inbox; by the agent's id
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
		"channels": named(&s.Channels, func(name string) error {
			if strings.Contains(name, ".") {
				return fmt.Errorf("%q is no name of a channel: write letters, digits, '-' and '_'", name)
			}
			return serverName("channel")(name)
		}, readPatterns),
		"inboxes": named(&s.Inboxes, func(id string) error {
			_, err := scope.ParseID(id)
			return err
		}, readPatterns),
	}
}

// readPatterns reads the list of patterns of agents of a name.
func readPatterns(out *agents.IDs, name string, value *yaml.Node) error {
	err := fields.Texts((*[]string)(out), name, catalog.CheckName)(value)
	if err != nil && value.Kind != yaml.SequenceNode {
		err = fmt.Errorf("%q %w", name, err) // the errors of a list's items quote the item
	}
	return err
}
