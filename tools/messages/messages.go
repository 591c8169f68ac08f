// Package messages provides the tools publish and subscribe: messages on NATS
// that are divided among agents. The server is embedded, or an outside one. Both need
// JetStream, which keeps the messages. The drivers are in the program scopefs-stores.
//
// A message is in one of three kinds of places, and each place is a stream:
//
//   - the subjects {id}.> of an agent, which only that agent publishes and reads.
//     The door maps subjects by [share.Subjects] before a tool sees them;
//   - a channel _channel.{name}, for the agents that the operator lists;
//   - an inbox _inbox.{id}: the agents that the operator lists publish to it, and
//     only its owner reads it. No id begins with '_'.
//
// A full place discards its oldest messages. A publisher fills only its own part
// and the channels and inboxes that it was granted.
//
// Delivery is at least once. A durable consumer for each agent and filter holds
// the position of the last acknowledged message. A cursor acknowledges: the
// call that passes the cursor of a page acknowledges all messages up to the end
// of that page. A call without a cursor returns the unacknowledged messages.
package messages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/scopefs/scopefs/scope/share"
	"github.com/scopefs/scopefs/tools"
)

// The bounds of the tools and their drivers. [share.Subjects] bounds a subject.
const (
	MaxText  = 64 << 10        // bytes of a message
	MaxPage  = 100             // messages
	Patience = 5 * time.Second // how long a call may take, beside its wait
	maxWait  = 30              // seconds
	Overhead = 128             // bytes of a message at most beside its text, its subject and its sender
)

// New returns the tools publish and subscribe.
func New(store Store, grants Grants) ([]tools.Tool, error) {
	s := service{store, grants}
	publish, err1 := tools.NewScoped(share.Subjects{}, "publish",
		"Publish a message: on a subject of your own, on a channel that you were granted, or to an agent whose inbox you were granted. Subjects are tokens with dots between them, without wildcards.",
		tools.Hints{Title: "Publish a message", Writes: true, Acts: true, Waits: true}, s.publish)
	subscribe, err2 := tools.NewScoped(share.Subjects{}, "subscribe",
		"Read messages of one of your own subjects, of all of them, of a channel or of your inbox, oldest first. Pass the cursor of the last page to acknowledge it and get what follows. Without a cursor you get what was not acknowledged, maybe again.",
		tools.Hints{Title: "Read messages", Acts: true, Waits: true}, s.subscribe)
	publish, err1 = tools.Judged(publish, err1, func(env tools.Env, in publishArgs) error {
		_, err := s.to(env, in)
		return err
	})
	subscribe, err2 = tools.Judged(subscribe, err2, func(env tools.Env, in subscribeArgs) error {
		_, err := s.from(env, in)
		return err
	})
	return []tools.Tool{publish, subscribe}, errors.Join(err1, err2)
}

type service struct {
	store  Store
	grants Grants
}

// publishArgs are the arguments of publish.
type publishArgs struct {
	On      tools.Resource `json:"subject,omitempty" limit:"empty,len=256" jsonschema:"your own subject, such as jobs.done"`
	Channel string         `json:"channel,omitempty" limit:"len=64" jsonschema:"in place of subject: a channel's name"`
	To      string         `json:"to,omitempty" limit:"len=63" jsonschema:"in place of subject: the agent whose inbox gets the message"`
	Text    string         `json:"text" limit:"len=65536" jsonschema:"at most 64 KiB"`
}

// Subject returns the place.
func (in publishArgs) Subject() (rel, target string) {
	return "", about(in.On.Key(), in.Channel, in.To)
}

// published is the result of publish.
type published struct {
	Sequence uint64 `json:"sequence" jsonschema:"of the message among those of its place"`
}

func (s service) publish(ctx context.Context, env tools.Env, in publishArgs) (out published, err error) {
	if len(in.Text) > MaxText {
		return out, tools.Errorf(tools.TooLarge, "the message has %d bytes: the limit is %d", len(in.Text), MaxText).
			Suggest("write a file, or split it over several messages")
	}
	p, err := s.to(env, in)
	if err == nil {
		out.Sequence, err = s.store.Publish(ctx, Message{p, env.Agent, in.Text})
	}
	return out, err
}

// to returns the place that a message goes to, if the agent may publish there.
func (s service) to(env tools.Env, in publishArgs) (Place, error) {
	switch {
	case count(in.On.Key() != "", in.Channel != "", in.To != "") != 1:
		return Place{}, tools.Errorf(tools.Invalid, "pass one of subject, channel and to")
	case in.Channel != "":
		return s.grants.channel(env, in.Channel)
	case in.To != "":
		return s.grants.inboxOf(env, in.To)
	}
	return own(in.On)
}

// subscribeArgs are the arguments of subscribe.
type subscribeArgs struct {
	On      tools.Resource `json:"subject,omitempty" limit:"empty,len=256" jsonschema:"one of your own subjects; default: all of them"`
	Channel string         `json:"channel,omitempty" limit:"len=64" jsonschema:"in place of subject: a channel's name"`
	Inbox   bool           `json:"inbox,omitempty" jsonschema:"in place of subject: your inbox"`
	Cursor  string         `json:"cursor,omitempty" limit:"len=64" jsonschema:"cursor of the page before, with the same subject, channel or inbox: acknowledges that page"`
	Limit   int            `json:"limit,omitempty" limit:"min=1,max=100" jsonschema:"messages in a page; default 20"`
	Wait    int            `json:"wait_seconds,omitempty" limit:"min=0,max=30" jsonschema:"how long to wait for a message if there is none; default: not at all"`
}

// Subject returns the place.
func (in subscribeArgs) Subject() (rel, target string) {
	if in.Inbox {
		return "", "inbox"
	}
	return "", about(in.On.Key(), in.Channel, "")
}

// message is a message of a page.
type message struct {
	Subject string    `json:"subject,omitempty" jsonschema:"if it is your own"`
	From    string    `json:"from,omitempty" jsonschema:"the agent that published it"`
	Time    time.Time `json:"time"`
	Text    string    `json:"text"`
}

// page is the result of subscribe.
type page struct {
	Messages  []message `json:"messages" limit:"items=100"`
	Cursor    string    `json:"cursor" jsonschema:"pass it to acknowledge this page and get what follows"`
	More      bool      `json:"more,omitempty" jsonschema:"there may be more messages now"`
	Discarded bool      `json:"discarded,omitempty" jsonschema:"messages may have been discarded that you did not acknowledge: they were too old, or too many"`
}

// Content returns a heading and the text of each message, and then the cursor.
func (o page) Content() (content []tools.Content) {
	for _, m := range o.Messages {
		head := "[" + m.Time.Format(time.RFC3339) + " from " + m.From
		if m.Subject != "" {
			head += " on " + tools.Quote(m.Subject)
		}
		content = append(content, tools.Content{Text: head + "]\n" + m.Text})
	}
	var b strings.Builder
	if len(o.Messages) == 0 {
		b.WriteString("There are no new messages.\n")
	}
	if o.Discarded {
		b.WriteString("[messages may have been discarded that you did not acknowledge]\n")
	}
	if o.More {
		b.WriteString("[there may be more]\n")
	}
	fmt.Fprintf(&b, "[go on with cursor %q]\n", o.Cursor)
	return append(content, tools.Content{Text: b.String()})
}

// from returns the place whose messages the agent reads, if it may.
func (s service) from(env tools.Env, in subscribeArgs) (Place, error) {
	switch {
	case count(in.On.Key() != "", in.Channel != "", in.Inbox) > 1:
		return Place{}, tools.Errorf(tools.Invalid, "pass one of subject, channel and inbox")
	case in.Channel != "":
		return s.grants.channel(env, in.Channel)
	case in.Inbox:
		return s.grants.inbox(env)
	}
	return own(in.On)
}

func (s service) subscribe(ctx context.Context, env tools.Env, in subscribeArgs) (out page, err error) {
	p, err := s.from(env, in)
	if err != nil {
		return out, err
	}
	r := Reading{
		Place: p, Reader: consumerName(env.Agent, p.Filter),
		Limit: min(cmp.Or(in.Limit, 20), MaxPage), Wait: time.Duration(min(in.Wait, maxWait)) * time.Second,
	}
	if in.Cursor != "" {
		if r.After, err = parseCursor(in.Cursor, r.Reader); err != nil {
			return out, err
		}
		r.Acknowledges = true
	}
	found, err := s.store.Read(ctx, r)
	if err != nil {
		return out, err
	}
	out = page{Messages: []message{}, Cursor: cursor(found.End, r.Reader), More: found.More, Discarded: found.Discarded}
	for _, m := range found.Messages {
		shown := message{From: m.From, Time: m.Time.UTC(), Text: m.Text}
		if in.Channel == "" && !in.Inbox {
			if shown.Subject, err = in.On.KeyOf(m.Subject); err != nil {
				if strings.HasPrefix(m.Subject, strings.TrimSuffix(p.Subjects, ">")) {
					continue // another client of the server published it where no agent does
				}
				return page{}, foreign(m.Subject)
			}
		} else if m.Subject != p.Filter {
			return page{}, foreign(m.Subject)
		}
		out.Messages = append(out.Messages, shown)
	}
	return out, nil
}

func count(set ...bool) (n int) {
	for _, is := range set {
		if is {
			n++
		}
	}
	return n
}

// Arguments returns the arguments of publish or subscribe that the log has the subject of.
func Arguments(target string) any {
	if channel, ok := strings.CutPrefix(target, "channel "); ok {
		return map[string]string{"channel": channel}
	}
	if owner, ok := strings.CutPrefix(target, "inbox of "); ok {
		return map[string]string{"to": owner, "text": "x"}
	}
	return map[string]string{"subject": target}
}

// about names a place for the log.
func about(subject, channel, to string) string {
	switch {
	case channel != "":
		return "channel " + channel
	case to != "":
		return "inbox of " + to
	}
	return subject
}
