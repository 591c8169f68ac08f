package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/scopefs/scopefs/audit"
	"github.com/scopefs/scopefs/internal/api"
	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/driver"
	"github.com/scopefs/scopefs/internal/fleet"
	"github.com/scopefs/scopefs/internal/placement"
	"github.com/scopefs/scopefs/internal/streams"
	"github.com/scopefs/scopefs/scope"
	"github.com/scopefs/scopefs/tools/approvals"
)

// fleetNode is a node without views: a log, approvals, the daemon's part of the fleet, and the process that speaks to the server.
type fleetNode struct {
	paths  config.Paths
	agents []scope.ID
	log    *audit.Log
	set    *approvals.Set
	node   *fleet.Node
	stream config.Stream
	all    *streams.Set // the process; nil: it is cut off
	fleet  driver.Handlers
	next   int // of its events
	random *rand.Rand
}

func startFleetNode(dir string, f config.Fleet, agents int) (n *fleetNode, err error) {
	seed := fnv.New64a()
	_, _ = io.WriteString(seed, f.Name)
	n = &fleetNode{random: rand.New(rand.NewPCG(seed.Sum64(), 1)),
		paths: config.Paths{Base: dir, State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}, set: approvals.NewSet(nil)}
	if err := os.MkdirAll(n.paths.Audit(), 0o700); err != nil {
		return nil, err
	}
	// One that is there already keeps the log from reserving 16 MiB: of a thousand logs on one tmpfs that would be its memory.
	if err := os.WriteFile(filepath.Join(n.paths.Audit(), "reserve"), nil, 0o600); err != nil {
		return nil, err
	}
	if n.log, err = audit.Open(n.paths.Audit(), audit.Options{}); err != nil {
		return nil, err
	}
	shown := make([]api.Agent, agents)
	for i := range shown {
		id := scope.ID(fmt.Sprintf("agent-%03d", i))
		n.agents = append(n.agents, id)
		shown[i] = api.Agent{ID: id, State: api.Mounted, Mount: filepath.Join(n.paths.Views(), string(id)),
			ViewPID: 10_000 + i, Sessions: []string{"s-" + string(id)}}
	}
	n.node, err = fleet.Join(f, fleet.Host{
		Paths: n.paths, Version: "bench", Approvals: n.set, Record: n.log.Record, Logger: slog.New(slog.DiscardHandler),
		Agents: func() []api.Agent { return shown },
		Reload: func(context.Context) []api.Reloaded { return nil }, // nothing is wrong
		Enter:  func() (func(), error) { return func() {}, nil },
		Decided: func(ctx context.Context, as string) func(approvals.Approval) error {
			return func(a approvals.Approval) error {
				return n.log.Record(ctx,
					audit.Event{Event: audit.KindApproval, Agent: string(a.Agent), Op: a.Tool, Outcome: a.State, Detail: "as " + as})
			}
		},
	})
	if err != nil {
		return nil, err
	}
	leases, err := placement.New(f.Name, n.paths.State)
	if err != nil {
		return nil, err
	}
	n.stream, n.fleet = f.Stream(), n.node.Handlers()
	leases.Handle(n.fleet)
	n.connect()
	return n, nil
}

// connect starts the process that speaks to the server.
func (n *fleetNode) connect() {
	n.all = streams.Start([]config.Stream{n.stream}, streams.Host{
		Paths: n.paths, Version: "bench", Logger: slog.New(slog.DiscardHandler), Record: n.log.Record, Fleet: n.fleet,
		Stderr: func(string) io.Writer { return os.Stderr },
	})
}

// cut ends that process.
func (n *fleetNode) cut() {
	if n.all != nil {
		n.all.Close()
	}
	n.all = nil
}

func (n *fleetNode) close() error {
	n.cut()
	n.node.Close()
	n.set.Close()
	return n.log.Close()
}

// record records an event of each agent in its turn: the end of a call, as the door records it. Events differ as those of real
// work do, so that they compress no better.
func (n *fleetNode) record(ctx context.Context) error {
	agent := n.next % len(n.agents)
	n.next++
	op := pick(n.random, "read_file", "read_file", "read_file", "write_file", "edit_file", "list_files", "search", "bash", "fetch")
	e := audit.Event{
		Event: audit.KindCall, Agent: string(n.agents[agent]), Session: fmt.Sprintf("%s-%d", fmt.Sprintf("%026d", agent*7919)[:20], n.next/500),
		Call: fmt.Sprintf("%016x%010x", n.random.Uint64(), n.random.Uint32()), Op: op, Verdict: audit.Allow, Outcome: "ok", Program: "agent",
		DurationUS: int64(math.Exp(4 + 8*n.random.Float64())), Bytes: int64(n.random.ExpFloat64() * 9000),
	}
	switch op {
	case "bash":
		e.Detail = pick(n.random, "go test ./", "npm run ", "git show ", "rg -n ", "make -C ") + n.name()
	case "fetch":
		e.Detail = "https://" + pick(n.random, "proxy.golang.org", "registry.npmjs.org", "api.github.com") + "/" + n.name() + "/@v/list"
	default:
		e.Path = pick(n.random, "src/", "internal/", "web/components/", "docs/", "test/") + n.name() + pick(n.random, ".go", ".ts", ".md", ".py")
	}
	switch n.random.IntN(20) {
	case 0:
		e.Verdict, e.Outcome = audit.Deny, "denied"
		fallthrough
	case 1, 2, 3:
		e.Rule, e.RuleKind = "view.paths "+n.name()+"/**: "+pick(n.random, "write", "read", "hide"), "write"
	}
	return n.log.Record(ctx, e)
}

// name returns a path of two words and a number.
func (n *fleetNode) name() string {
	return fmt.Sprintf("%s/%s_%x", pick(n.random, names...), pick(n.random, names...), n.random.IntN(1<<16))
}

var names = strings.Fields("account agent audit batch border cache call chart client cluster codec commit config context cursor daemon " +
	"delta device draft driver editor engine entry error event export fleet format frame grant graph handle hash head host index input " +
	"invoice journal key layout lease ledger limit link list lock login merge message metric model mount network node notice object order " +
	"owner packet page parser patch path policy pool prefix price proof proxy query queue quota range record region reply report request " +
	"result role root route rule schema scope search secret sender server session shard sign signal socket source spool stream table " +
	"target task tenant test theme thread token trace tree tunnel user value vector version view vault watch witness worker zone")

func pick(r *rand.Rand, from ...string) string { return from[r.IntN(len(from))] }

// ask has a request of an agent wait.
func (n *fleetNode) ask(number int) error {
	agent := n.agents[number%len(n.agents)]
	_, _, err := n.set.Ask(approvals.Approval{
		Agent: agent, Session: "s-" + string(agent), Tool: "write_file", Policy: "1", Rule: "ask: write_file", Asked: time.Now(),
		Arguments: fmt.Appendf(nil, `{"content":"changed","path":"src/file-%d.go"}`, number),
	}, func() error { return nil })
	return err
}

// last returns the number of the log's last event.
func (n *fleetNode) last() (uint64, error) { return audit.Last(n.paths.Audit()) }

// bytes returns the size of the log's lines, as long as none is compressed.
func (n *fleetNode) bytes() (sum int64, err error) {
	files, err := filepath.Glob(filepath.Join(n.paths.Audit(), "*.jsonl"))
	for _, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return 0, err
		}
		sum += info.Size()
	}
	return sum, err
}
