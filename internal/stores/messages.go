package stores

import (
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/tools/messages"
)

// messages adds the message store.
func (s *Stores) messages(config *config.MessagesStore, state string) error {
	if config == nil {
		return nil
	}
	limits := messages.Limits{Messages: config.Messages, Bytes: config.Size, Age: config.Age}
	kind, opened := "nats embedded", messages.OpenEmbedded(filepath.Join(state, "messages"), limits)
	if config.URL != "" || config.User != "" || config.Password != nil {
		u, err := url.Parse(config.URL)
		if err != nil {
			return fmt.Errorf("messages: url: is no address: write tls://HOST:PORT or nats://HOST:PORT")
		}
		kind = "nats"
		if opened, err = messages.OpenServer(messages.Server{URL: u, User: config.User, Password: config.Password}, limits); err != nil {
			return fmt.Errorf("messages: %w", err)
		}
	}
	list, err := messages.New(opened, messages.Grants{Channels: granted(config.Channels), Inboxes: granted(config.Inboxes)})
	if err != nil {
		return err
	}
	s.add(store{name: "messages", kind: kind, tools: list, check: opened.Ping, close: opened.Close})
	s.tools = append(s.tools, list...)
	return nil
}

func granted(lists map[string]config.Patterns) map[string]func(id string) bool {
	all := map[string]func(id string) bool{}
	for name, who := range lists {
		all[name] = who.Allow
	}
	return all
}
