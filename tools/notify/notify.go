// Package notify lets agents send notifications to channels that the operator
// names: Slack, Discord, ntfy, Matrix, e-mail and webhooks. The agent gives the
// channel's name, a text and a title; scopefs adds the address and the credential.
//
// A channel is write-only: its strategy is [share.None], and the credential is the
// scope. The call delivers: its result says that the server has taken the
// notification, and its record in the log has the outcome. There is no queue that
// a crash could lose.
//
// An attempt that failed before the server can have taken the notification is
// repeated with back-off; so is an answer that asks for it (429, 5xx; 4xx of SMTP).
// An attempt without an answer is not repeated, because the server may have
// taken it.
//
// Addresses are resolved and checked by package egress. Redirects are not followed,
// and no part of an answer but its status reaches the agent or the log.
package notify

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/scopefs/scopefs/internal/credential"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/scope/share"
	"github.com/scopefs/scopefs/tools"
	"github.com/scopefs/scopefs/tools/limit"
)

// The bounds of a notification and its delivery.
const (
	maxContent  = 16 << 10 // bytes, and see most
	defaultTime = 30 * time.Second
	defaultRate = 10 // notifications of an agent in a minute
	allAgents   = 6  // times the rate of one agent
	maxAtOnce   = 16 // deliveries; one agent gets half of them
	maxAttempts = 4
	firstPause  = 500 * time.Millisecond // before the second attempt; doubled for each further one
)

// New returns the tool notify for the channels of these names.
func New(channels map[string]Channel) ([]tools.Tool, error) {
	s := set{}
	for name, c := range channels {
		if err := c.Check(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		s[name] = &sender{Channel: c, name: name}
	}
	t, err := tools.NewScoped(share.None{}, "notify",
		"Send a notification to one of the channels that the operator has named: "+strings.Join(slices.Sorted(maps.Keys(s)), ", ")+
			". It is plain text: markup is shown as it is written, and it mentions nobody. The result means that the channel's server has taken it.",
		tools.Hints{Title: "Notify", Acts: true, OpenWorld: true, Waits: true, Turns: tools.NewTurns(maxAtOnce, maxAtOnce/2)}, s.notify)
	t, err = tools.Judged(t, err, s.judge)
	return []tools.Tool{t}, err
}

type set map[string]*sender

// A sender delivers to one channel.
type sender struct {
	Channel
	name  string
	rates limit.Rates
}

// notifyArgs are the arguments of notify.
type notifyArgs struct {
	Channel tools.Resource `json:"channel" jsonschema:"name of the channel"`
	Content string         `json:"content" limit:"len=16384" jsonschema:"plain text; at most 16 KiB, 2000 characters for Discord, 4096 bytes for ntfy"`
	Title   string         `json:"title,omitempty" limit:"len=200" jsonschema:"one line"`
}

// Subject names the channel in the log.
func (a notifyArgs) Subject() (rel, target string) { return "", a.Channel.Key() }

// Arguments returns the arguments of notify that the log has the subject of.
func Arguments(target string) any { return map[string]string{"channel": target, "content": "x"} }

// delivered is the result of notify.
type delivered struct {
	Attempts int `json:"attempts" jsonschema:"how often the delivery was tried"`
}

// Content says that the notification was delivered.
func (d delivered) Content() []tools.Content {
	text := "delivered"
	if d.Attempts > 1 {
		text = fmt.Sprintf("delivered by attempt %d", d.Attempts)
	}
	return []tools.Content{{Text: text}}
}

// A message is a notification on its way.
type message struct {
	id, agent, title, content string
}

// heading is the first line: the agent, which no agent can hide, and the title.
func (m message) heading() string { return strings.TrimSpace("[" + m.agent + "] " + m.title) }

// judge decides whether the agent may use the channel.
func (s set) judge(env tools.Env, in notifyArgs) error {
	name := in.Channel.Name()
	if c := s[name]; c == nil || !c.allows(env) {
		return s.unknown(env, name)
	}
	return nil
}

func (s set) notify(ctx context.Context, env tools.Env, in notifyArgs) (out delivered, err error) {
	name := in.Channel.Name()
	c := s[name]
	m := message{env.Call, string(env.Agent), in.Title, in.Content}
	if err := c.check(m); err != nil {
		return out, err
	}
	if err := c.count(name, env.Agent); err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(c.Timeout, defaultTime))
	defer cancel()
	secret, err := c.secret(ctx)
	if err != nil {
		return out, unavailable("the operator's credential for %s cannot be read", name).Because(err)
	}
	out.Attempts, err = c.deliver(ctx, name, m, secret)
	return out, err
}

// unknown is the error for a channel that is not there, or not for this agent.
func (s set) unknown(env tools.Env, name string) *tools.Error {
	d := scope.Decision{Kind: scope.KindGrant, Rule: "stores.notify", Remedy: "name " + name + " in stores.notify"}
	if s[name] != nil {
		d.Rule = "stores.notify." + name + ".agents"
		d.Remedy = env.AddTo(d.Rule)
	}
	e := tools.Refused(d, tools.Denied, "there is no channel %.64q here", name)
	var names []string
	for name, c := range s {
		if c.allows(env) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	e.Hint = "channels: " + strings.Join(names, ", ")
	return e
}

// allows reports whether all agents that bound a call may use the channel.
func (c *sender) allows(env tools.Env) bool {
	return c.Agents == nil || env.All(c.Agents)
}

// check reports what the channel does not take.
func (c *sender) check(m message) error {
	if strings.TrimSpace(m.content) == "" {
		return tools.Errorf(tools.Invalid, "content: is empty")
	}
	if strings.ContainsFunc(m.title, unprintable) {
		return tools.Errorf(tools.Invalid, "title: holds a line break or another control character")
	}
	if strings.ContainsFunc(m.content, func(r rune) bool { return unprintable(r) && r != '\n' && r != '\r' && r != '\t' }) {
		return tools.Errorf(tools.Invalid, "content: holds a control character")
	}
	size, most, unit := len(m.content), maxContent, "bytes"
	switch c.Kind {
	case Discord: // https://discord.com/developers/docs/resources/webhook#execute-webhook
		size, most, unit = utf8.RuneCountInString(discordText.Replace(m.heading()+"\n"+m.content)), 2000,
			"characters, with its heading and a backslash before each of markup"
	case Ntfy: // https://docs.ntfy.sh/publish/#limitations
		most = 4096
	}
	if size > most {
		return tools.Errorf(tools.TooLarge, "the notification has %d %s: the channel takes %d", size, unit, most).
			Suggest("shorten it")
	}
	return nil
}

// unprintable reports whether a rune is a control character, a line separator, or an
// override or isolate of the writing direction, which can show a text as another.
func unprintable(r rune) bool {
	return unicode.IsControl(r) || r == utf8.RuneError || unicode.In(r, unicode.Zl, unicode.Zp) || 0x202a <= r &&
		r <= 0x202e || 0x2066 <= r && r <= 0x2069
}

// count counts a notification against the rates of its agent and of the channel.
func (c *sender) count(name string, id scope.ID) error {
	rate := cmp.Or(c.Rate, defaultRate)
	reached, wait, err := c.rates.Take([]scope.Rate{
		{Pattern: "agent " + string(id), N: rate, Per: time.Minute},
		{Pattern: "all agents", N: rate * allAgents, Per: time.Minute},
	})
	if err != nil || reached == nil {
		return err
	}
	d := scope.Decision{Kind: scope.KindRate, Rule: fmt.Sprintf("stores.notify.%s.rate: %d per %v", name, reached.N, reached.Per)}
	return tools.Refused(d, tools.RateLimited, "too many notifications to this channel").Suggest(again(wait))
}

func again(wait time.Duration) string {
	return fmt.Sprintf("try again in %v", wait.Truncate(time.Second)+time.Second)
}

func unavailable(format string, args ...any) *tools.Error {
	return tools.Errorf(tools.Unavailable, format, args...).Suggest("ask the operator: scopefs audit has the reason")
}

// deliver sends a message, and repeats what failed and may be repeated. It returns
// the attempts that it made.
func (c *sender) deliver(ctx context.Context, name string, m message, secret credential.Secret) (int, error) {
	for n := 1; ; n++ {
		f := c.send(ctx, m, secret)
		if f == nil {
			return n, nil
		}
		pause := max(firstPause<<(n-1), f.After)
		end, _ := ctx.Deadline()
		if !f.Again || n == maxAttempts || time.Now().Add(pause).After(end) {
			return n, f.error(name, n)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return n, f.error(name, n)
		}
	}
}

// send makes one attempt.
func (c *sender) send(ctx context.Context, m message, secret credential.Secret) *Failure {
	u, err := c.target(secret)
	switch {
	case err != nil:
		return &Failure{Why: err.Error()}
	case c.Kind == Email:
		return c.mail(ctx, u, m, secret)
	}
	return c.post(ctx, u, m, secret)
}

// A Failure is why an attempt did not deliver. Its text is for the log: it holds no
// text of the server, which may repeat the credential.
type Failure struct {
	Why     string
	Again   bool          // the attempt may be repeated
	After   time.Duration // not before
	Unknown bool          // the server may have taken the notification
}

// error is the failure as the agent sees it, after n attempts.
func (f *Failure) error(name string, n int) *tools.Error {
	e := unavailable("%s: not delivered", name)
	switch {
	case f.Unknown:
		e = unavailable("%s: the server did not answer: the notification may have been delivered", name)
	case f.After > 0:
		d := scope.Decision{Kind: scope.KindLimit, Rule: "the channel's server: try again later"}
		e = tools.Refused(d, tools.RateLimited, "%s: not delivered", name)
		e.Hint = again(f.After)
	case f.Again:
		e.Hint = "try again later: the channel's server does not work"
	}
	return e.Because(fmt.Errorf("attempt %d: %s", n, f.Why))
}
