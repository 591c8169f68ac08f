// Package house holds the rules of the house: which package may import which, who may call
// the system, what is at the top.
package house

const module = "github.com/scopefs/scopefs/"

// moduleDirs are the directories of our modules. The first is the library's and the program's.
var moduleDirs = []string{".", "cmd/scopefs-export", "cmd/scopefs-stores", "cmd/scopefs-console", "cmd/scopefs-csi", "integration"}

// modules are the patterns of all our packages.
var modules = []string{"./...", "./cmd/scopefs-export/...", "./cmd/scopefs-stores/...", "./cmd/scopefs-console/...", "./cmd/scopefs-csi/...", "./integration/..."}

// floors says what of ours each package may import. A package that is not here
// has no floor yet: give it one.
var floors = map[string]struct {
	imports []string
	why     string
}{
	"scope":                {nil, "what an agent may do must be decidable without anything else"},
	"scope/beneath":        {nil, "a richer os.Root is useful alone"},
	"scope/widening":       {[]string{"scope", "scope/agents", "scope/catalog", "scope/hosts"}, "it compares the grants of two definitions"},
	"scope/agents":         {[]string{"internal/fields", "internal/folder", "internal/frontmatter", "internal/header", "internal/printable", "scope", "scope/beneath", "scope/catalog", "scope/context", "scope/hosts", "scope/protect"}, "a definition is text: nothing runs for it to be read"},
	"scope/catalog":        {[]string{"internal/fields", "internal/nearest"}, "a name is text, whatever it names"},
	"scope/hosts":          {[]string{"internal/credential", "internal/fields", "internal/folder", "internal/frontmatter", "internal/header", "scope", "scope/catalog"}, "which hosts a sandbox reaches does not depend on whose it is"},
	"scope/protect":        {[]string{"internal/fields", "internal/folder", "internal/frontmatter", "scope", "scope/catalog"}, "a list of files is text"},
	"scope/activities":     {[]string{"internal/fields", "internal/folder", "scope/agents", "scope/catalog", "scope/context"}, "a declaration is text"},
	"audit":                {[]string{"audit/tree", "internal/interrupted", "internal/peer"}, "the log must be provable without what writes to it"},
	"fs/fusedev":           {nil, "a connection to the kernel carries any file system"},
	"fs/history/query":     {[]string{"audit", "fs/branch", "fs/history", "scope/beneath"}, "requests know nothing of who asks"},
	"fs/history/journal":   {[]string{"scope/beneath"}, "a record says what has happened, not what to do"},
	"fs/history":           {[]string{"fs/history/journal", "fs/quota", "scope", "scope/beneath"}, "what is kept does not depend on who serves the view"},
	"fs/judge":             {[]string{"scope", "scope/beneath"}, "what files say is judged alike for a client, an undo and a commit"},
	"fs/listing":           {[]string{"scope/beneath"}, "how a directory is read does not depend on what is hidden"},
	"fs/hold":              {[]string{"fs/branch", "fs/quota", "scope/beneath"}, "its caller says which paths are held"},
	"fs/quota":             {[]string{"scope", "scope/beneath"}, "what is counted does not depend on who serves the view"},
	"internal/usage":       {[]string{"fs/quota", "internal/api", "scope", "scope/agents", "scope/beneath"}, "pages in memory know no view"},
	"fs/branch":            {[]string{"fs/history", "scope", "scope/beneath"}, "what differs does not depend on who mounts the overlay"},
	"fs":                   {[]string{"audit", "fs/fusedev", "fs/history", "fs/hold", "fs/judge", "fs/listing", "fs/quota", "internal/thread", "scope", "scope/beneath"}, "the view resolves and decides by scope, and records by audit"},
	"fs/callfs":            {[]string{"fs/fusedev"}, "which call a process works for is told to it"},
	"tools/limit":          {[]string{"scope"}, "a bound knows neither what it bounds nor how much"},
	"tools/approvals":      {[]string{"scope", "scope/context"}, "what waits for the operator knows neither how it is asked for nor how it is done"},
	"scope/context":        {nil, "what a call may see of a context must be decidable without anything else"},
	"tools":                {[]string{"audit", "audit/trace", "internal/nearest", "scope", "scope/context", "tools/approvals", "tools/limit"}, "another module can have the one door with rules of its own, and without definition files"},
	"tools/sandbox":        {[]string{"internal/proc", "internal/thread", "scope", "scope/beneath", "tools/sandbox/pid1"}, "a place where tools run knows whose it is, and not what runs"},
	"tools/sandbox/pid1":   {[]string{"internal/proc", "internal/thread"}, "process 1 runs inside the sandbox and knows nothing of the daemon; the host's side imports its messages"},
	"tools/skill":          {[]string{"internal/bounded", "internal/frontmatter", "scope", "tools"}, "a skill is a text with front matter"},
	"tools/mcp":            {[]string{"audit", "audit/trace", "internal/rpc", "scope", "scope/context", "tools", "tools/limit"}, "the MCP face of a set"},
	"tools/sql":            {[]string{"internal/peer", "scope", "tools", "tools/sandbox", "tools/sql/engine"}, "it starts engines, and speaks to them"},
	"tools/sql/engine":     {[]string{"internal/peer"}, "a confined process that knows no agent: hostile statements run in it"},
	"tools/notify":         {[]string{"internal/credential", "scope", "tools", "tools/egress", "tools/limit"}, "it delivers by the rules of connections, and bounds how often"},
	"tools/upstream":       {[]string{"internal/bounded", "internal/rpc", "tools", "tools/egress", "tools/limit", "tools/sandbox"}, "a client of servers bounds what they send"},
	"tools/*":              {[]string{"scope", "audit", "audit/trace", "tools", "internal/bounded", "internal/rpc", "scope/context", "tools/sandbox", "internal/credential", "internal/linecheck", "tools/egress"}, "a tool does not know the other tools, nor who calls it, nor where the rules come from"},
	"tools/bash":           {[]string{"audit/trace", "scope", "tools", "tools/bash/tape", "tools/sandbox"}, "commands, and what is kept of them"},
	"tools/bash/tape":      {nil, "bytes in memory know no command"},
	"tools/changes":        {[]string{"audit", "fs/history", "fs/history/query", "scope", "tools", "tools/approvals", "tools/file", "tools/limit", "tools/sandbox"}, "it asks about a history, and does not know who answers"},
	"tools/file":           {[]string{"internal/interrupted", "internal/peer", "scope", "scope/beneath", "tools", "tools/approvals", "tools/file/worker", "tools/sandbox"}, "operations on files, which its worker does inside"},
	"internal/peer":        {nil, "frames and ids know no message"},
	"internal/linecheck":   {nil, "lines know no protocol"},
	"tools/file/worker":    {[]string{"internal/peer", "tools", "tools/approvals", "tools/sandbox"}, "a transport knows no operation"},
	"tools/file/profile":   {[]string{"tools", "tools/file", "tools/sandbox"}, "other programs' names for the tools of tools/file"},
	"internal/config":      {[]string{"internal/credential", "internal/durable", "internal/fields", "internal/fleet/order", "internal/folder", "internal/frontmatter", "internal/header", "internal/printable", "internal/witness", "scope", "scope/agents", "scope/catalog", "scope/context", "scope/hosts"}, "settings are values"},
	"internal/overlay":     {[]string{"fs/branch", "fs/history", "fs/history/query", "internal/account", "scope", "scope/beneath"}, "an overlay outlives the view that is on it"},
	"internal/view":        {[]string{"audit", "fs", "fs/branch", "fs/fusedev", "fs/history", "fs/history/query", "fs/hold", "fs/judge", "fs/quota", "internal/account", "internal/api", "internal/claim", "internal/confine", "internal/heart", "internal/holder", "internal/ledger", "internal/mount", "internal/overlay", "internal/pathwatch", "internal/peer", "internal/placement", "internal/proc", "internal/spooled", "internal/usage", "scope", "scope/agents", "scope/beneath", "tools/sandbox"}, "both ends of a view's protocol: they know no call and no client"},
	"internal/bridge":      {[]string{"internal/rpc"}, "it passes messages on, and must not decide"},
	"internal/state":       {[]string{"internal/bounded", "internal/durable", "scope", "tools", "tools/approvals", "tools/limit"}, "what is kept is values of the doors"},
	"internal/daemon":      {[]string{"audit", "fs/fusedev", "internal/account", "internal/agent", "internal/amend", "internal/anchor", "internal/api", "internal/claim", "internal/config", "internal/console", "internal/definitions", "internal/desktop", "internal/devices", "internal/durable", "internal/fields", "internal/fleet", "internal/fleet/reader", "internal/holder", "internal/ledger", "internal/logger", "internal/lookup", "internal/loopback", "internal/metrics", "internal/mount", "internal/oneshot", "internal/outlive", "internal/overlay", "internal/placement", "internal/processes", "internal/push", "internal/session", "internal/state", "internal/stores", "internal/streams", "internal/trust", "internal/tunnels", "internal/usage", "internal/view", "scope", "scope/activities", "scope/agents", "tools", "tools/approvals", "tools/egress", "tools/limit", "tools/mcp", "tools/sandbox"}, "it serves no view itself: a process that does must not touch one"},
	"internal/amend":       {[]string{"internal/api", "internal/config", "internal/definitions", "internal/folder", "internal/frontmatter", "internal/printable", "scope", "scope/agents", "scope/catalog", "scope/hosts", "scope/protect", "tools/approvals"}, "a change of a definition is decided by loading it"},
	"internal/trustcmd":    {[]string{"internal/api", "internal/config", "internal/exit", "internal/report", "internal/terminal", "internal/trust", "scope/agents", "tools"}, "it shows a proposal, asks, and passes the answer on"},
	"internal/trust":       {[]string{"internal/api", "internal/config", "internal/definitions", "scope/agents", "scope/widening"}, "the daemon and the command decide alike"},
	"internal/claim":       {nil, "a file names a host, whatever it uses"},
	"internal/spooled":     {[]string{"audit", "internal/peer", "scope"}, "events in a file, whoever reads it"},
	"internal/nearest":     {nil, "a name is text, whatever it names"},
	"internal/definitions": {[]string{"internal/account", "internal/api", "internal/bounded", "internal/config", "internal/durable", "internal/fields", "internal/session", "internal/state", "internal/stores", "internal/view", "scope", "scope/activities", "scope/agents"}, "commands read definitions as the daemon does, without one"},
	"internal/report":      {[]string{"audit", "audit/tree", "fs/history", "internal/account", "internal/amend", "internal/api", "internal/bounded", "internal/config", "internal/definitions", "internal/doctor", "internal/fields", "internal/printable", "internal/selftest", "internal/stores", "internal/witness", "scope", "scope/agents", "scope/beneath", "tools", "tools/approvals", "tools/mcp"}, "it reads and decides again, and changes nothing"},
	"internal/top":         {[]string{"internal/api", "internal/config", "internal/printable", "internal/report", "internal/terminal", "tools/approvals"}, "what an operator sees and decides goes through the control API"},
	"internal/terminal":    {[]string{"internal/api", "internal/printable", "tools", "tools/sandbox"}, "it carries bytes and signals, and does not know whose"},
	"internal/desktop":     {nil, "a notification is text"},
	"internal/prompt":      {[]string{"internal/amend", "internal/api", "internal/config", "internal/exit", "internal/printable", "internal/report", "internal/terminal", "scope", "tools", "tools/approvals"}, "what the user of a run decides goes through the control API"},
	"internal/metrics":     {[]string{"audit", "internal/api"}, "it writes what is recorded and what it is given, and asks nobody"},
	"internal/selftest":    {nil, "it attacks from outside, with the programs that users have"},
	"internal/opened":      {nil, "a lock and a value"},
	"internal/witness":     {nil, "it carries what others have signed"},
	"internal/exit":        {nil, "a number and an error"},
	"internal/logcmd":      {[]string{"audit", "audit/tree", "internal/api", "internal/bounded", "internal/config", "internal/definitions", "internal/driver", "internal/exit", "internal/printable", "internal/report", "internal/state", "internal/terminal", "internal/witness", "scope"}, "it reads the log, without a daemon"},
	"internal/embedded":    {[]string{"internal/config", "internal/exit", "internal/mount", "internal/thread", "scope"}, "it starts a daemon, and speaks to it by a leash"},
	"internal/bases":       {[]string{"internal/api", "internal/config", "internal/embedded", "internal/exit"}, "it starts and ends daemons, and does not know what they do"},
	"internal/toolbox":     {[]string{"audit/trace", "internal/api", "internal/bases", "internal/bounded", "internal/bridge", "internal/config", "internal/embedded", "scope", "tools", "tools/mcp"}, "a client of tools does not know what they do"},
	"internal/batch":       {[]string{"internal/bounded", "internal/report", "scope/context", "tools", "tools/mcp"}, "a file of calls is calls: the door decides about each"},
	"internal/importer":    {[]string{"internal/config", "internal/definitions", "internal/durable", "internal/extensions", "internal/fields", "internal/imports", "internal/printable", "internal/session", "internal/state", "scope"}, "it writes what package imports converts"},
	"internal/launch":      {[]string{"audit", "internal/amend", "internal/api", "internal/bounded", "internal/config", "internal/definitions", "internal/login", "internal/programs", "scope", "scope/hosts", "tools/sandbox"}, "what a run starts does not depend on the command line"},
	"internal/cli":         {[]string{"audit", "fs/history", "internal/amend", "internal/api", "internal/bases", "internal/batch", "internal/beside", "internal/bounded", "internal/clients", "internal/config", "internal/console", "internal/consolecmd", "internal/daemon", "internal/definitions", "internal/doctor", "internal/embedded", "internal/exit", "internal/fleetcmd", "internal/extensions", "internal/fields", "internal/importer", "internal/launch", "internal/logcmd", "internal/loopback", "internal/mount", "internal/nearest", "internal/printable", "internal/programs", "internal/prompt", "internal/report", "internal/selftest", "internal/stores", "internal/terminal", "internal/thread", "internal/toolbox", "internal/top", "internal/trustcmd", "scope", "scope/agents", "scope/context", "scope/hosts", "tools", "tools/approvals", "tools/mcp", "tools/sandbox"}, "a thin face: what it can, others can without it"},
	"internal/pages":       {[]string{"internal/cli"}, "a program of make that writes what the command line says of itself"},
	"cmd/scopefs":          {[]string{"internal/anchor", "internal/cli", "internal/contextfs", "internal/holder", "internal/logger", "internal/tunnels", "internal/view", "tools/file", "tools/file/worker", "tools/sandbox/pid1"}, "main only chooses the role"},
	"integration/*":        {[]string{"**"}, "tests of the whole, and their tools"},

	"internal/extensions": {nil, "it copies files and does not know what they say"},

	"tools/egress/tunnel":  {[]string{"internal/interrupted"}, "whoever passes bytes does not know whose"},
	"internal/tunnels":     {[]string{"audit", "internal/confine", "internal/heart", "internal/holder", "internal/proc", "tools/egress", "tools/egress/tunnel", "tools/sandbox/pid1"}, "the process passes bytes of connections that were decided; both ends of its protocol know no rule"},
	"tools/egress":         {[]string{"audit", "internal/credential", "scope", "tools/egress/tunnel", "tools/limit"}, "whoever connects for an agent does it here; where the rules come from it does not know"},
	"internal/stores":      {[]string{"fs/quota", "internal/api", "internal/config", "internal/credential", "internal/driver", "internal/stores/wire", "internal/usage", "scope", "scope/agents", "scope/catalog", "tools", "tools/*", "tools/sql/engine"}, "a store knows its settings, and what an agent may take"},
	"internal/need":        {nil, "any test may need root, a program or time"},
	"internal/agenttest":   {[]string{"audit", "scope", "scope/agents", "scope/catalog", "tools"}, "any tool's test may call the tool as an agent does"},
	"internal/opentest":    {nil, "any test may count what is opened"},
	"internal/servertest":  {[]string{"internal/need"}, "any test may need a server"},
	"internal/workertest":  {[]string{"tools/file/worker"}, "the tests of tools/file and of its profiles need no sandbox"},
	"internal/credential":  {[]string{"internal/frontmatter"}, "who holds a secret need not know what it is for; a file of several is YAML"},
	"internal/fields":      {[]string{"internal/credential", "internal/frontmatter", "internal/nearest", "internal/printable", "scope"}, "how a file is read does not depend on what it says"},
	"internal/folder":      {[]string{"internal/fields", "internal/interrupted"}, "how a file is opened does not depend on what it says"},
	"internal/header":      {nil, "the name of a header is text"},
	"internal/frontmatter": {nil, "definitions, skills and imports have one reader"},
	"internal/printable":   {nil, "anybody writes a line"},
	"internal/interrupted": {nil, "anybody makes system calls"},
	"internal/thread":      {nil, "anybody starts a thread"},
	"internal/api":         {[]string{"fs/branch", "fs/history", "fs/history/query", "internal/config", "internal/login", "internal/proc", "scope", "tools/approvals", "tools/sandbox"}, "a client of the daemon needs nothing that runs in it"},
	"internal/account":     {[]string{"internal/config", "internal/mount", "scope", "scope/agents", "scope/beneath", "tools/sandbox"}, "who and where an agent is does not depend on what it does"},
	"internal/ledger":      {[]string{"audit", "fs/history", "fs/history/query", "scope", "tools", "tools/limit"}, "what an agent may write to the log does not depend on its sessions"},
	"internal/session":     {[]string{"audit", "audit/trace", "fs/history", "fs/history/query", "internal/account", "internal/api", "internal/config", "internal/contextfs", "internal/contextset", "internal/holder", "internal/ledger", "internal/login", "internal/mount", "internal/opened", "internal/outlive", "internal/proc", "internal/profiles", "internal/reach", "internal/runner", "internal/scopeinfo", "internal/state", "internal/stores", "internal/tunnels", "internal/view", "scope", "scope/activities", "scope/agents", "scope/beneath", "scope/catalog", "scope/context", "scope/hosts", "tools", "tools/*", "tools/file/profile", "tools/file/worker"}, "what happens on a view does not know when it is mounted"},
	"internal/agent":       {[]string{"audit", "fs/history", "fs/history/query", "internal/account", "internal/api", "internal/ledger", "internal/placement", "internal/session", "internal/view", "scope", "scope/agents", "scope/hosts", "tools/limit"}, "one agent does not know the daemon that has it"},
	"internal/mount":       {[]string{"fs/fusedev", "scope"}, "which views are mounted does not depend on who serves them"},
	"internal/outlive":     {[]string{"audit", "internal/contextfs", "internal/holder", "internal/ledger", "scope", "tools", "tools/bash", "tools/sandbox"}, "what is left of a sandbox does not depend on who has it next"},
	"internal/runner":      {[]string{"internal/api", "internal/config", "scope", "scope/agents", "tools/delegate", "tools/limit", "tools/sandbox"}, "what a runner reads does not depend on who starts it"},
	"internal/contextset":  {[]string{"scope", "scope/agents", "scope/context", "tools"}, "what a session may set does not depend on who serves it"},
	"internal/scopeinfo":   {[]string{"scope", "scope/agents", "tools", "tools/sandbox"}, "what an agent may know of itself does not depend on who serves it"},
	"internal/profiles":    {[]string{"tools", "tools/bash", "tools/file/profile"}, "a name is text, whatever it names"},
	"internal/reach":       {[]string{"internal/api", "internal/config", "internal/login", "scope", "scope/hosts"}, "the rules and the keys say whether a program reaches its model"},
	"internal/holder":      {[]string{"fs/fusedev", "internal/heart", "internal/proc"}, "it outlives a daemon that is dead, and needs nothing of it"},
	"internal/logger":      {[]string{"audit"}, "only it waits for the log's disk"},
	"internal/anchor":      {[]string{"audit", "internal/bounded", "internal/config", "internal/driver", "internal/oneshot", "internal/printable", "internal/state", "internal/witness", "tools/egress"}, "it takes a head elsewhere, and does not know when"},
	"internal/oneshot":     {nil, "a program and a text"},
	"internal/doctor":      {[]string{"audit", "fs/fusedev", "internal/beside", "internal/mount", "internal/view", "scope/beneath", "tools/sandbox"}, "it tries what those need, and needs no base"},
	"internal/clients":     {[]string{"internal/bounded"}, "the settings of other programs are text"},
	"internal/imports":     {[]string{"internal/frontmatter", "internal/header", "internal/printable", "scope", "scope/agents", "scope/catalog"}, "bytes in, bytes out: what others wrote is only text"},

	"internal/login":                        {[]string{"audit", "internal/credential", "tools/egress"}, "which file has a login, and which run uses it, others say"},
	"internal/programs":                     {[]string{"internal/credential", "internal/fields", "internal/folder", "internal/frontmatter", "internal/login"}, "what is installed on a host does not depend on who runs it"},
	"internal/durable":                      {nil, "how a file survives does not depend on what it says"},
	"internal/bounded":                      {nil, "anybody reads what may be too long"},
	"internal/proc":                         {nil, "what /proc has of a process does not depend on who asks"},
	"internal/rpc":                          {nil, "the head of a message is found without its meaning"},
	"cmd/scopefs-stores":                    {[]string{"cmd/scopefs-stores/internal/drivers", "cmd/scopefs-stores/internal/engine", "tools/sql/engine"}, "main only chooses the role"},
	"internal/driver":                       {[]string{"internal/beside", "internal/credential", "internal/heart", "internal/peer", "tools", "tools/egress", "tools/sandbox"}, "a protocol knows no store"},
	"cmd/scopefs-stores/internal/drivers":   {[]string{"cmd/scopefs-stores/internal/*", "internal/config", "internal/confine", "internal/driver", "internal/stores/wire", "tools/*", "tools/sql/engine"}, "it opens the drivers by the settings"},
	"cmd/scopefs-stores/internal/engine":    {[]string{"cmd/scopefs-stores/internal/sqliteconn", "internal/confine", "internal/peer", "tools/sql/engine"}, "a confined process that knows no agent: hostile statements run in it"},
	"cmd/scopefs-stores/internal/postgres":  {[]string{"internal/config", "internal/driver", "tools", "tools/sql", "tools/sql/engine"}, "the server judges statements; what an engine is, package sql says"},
	"cmd/scopefs-stores/internal/*":         {[]string{"internal/config", "internal/credential", "internal/driver", "internal/linecheck", "scope", "tools", "tools/*"}, "a driver knows its server, and no other driver"},
	"cmd/scopefs-stores/internal/kv":        {[]string{"cmd/scopefs-stores/internal/sqliteconn", "internal/config", "internal/credential", "internal/driver", "internal/linecheck", "scope", "tools", "tools/*"}, "a driver knows its server, and no other driver"},
	"internal/confine":                      {nil, "what confines a process knows neither driver nor page"},
	"cmd/scopefs-export":                    {[]string{"cmd/scopefs-export/internal/export", "cmd/scopefs-export/internal/streams", "internal/anchor"}, "main only chooses the role"},
	"cmd/scopefs-export/internal/traces":    {[]string{"audit", "audit/trace", "internal/credential"}, "spans follow from events"},
	"cmd/scopefs-export/internal/export":    {[]string{"audit", "audit/trace"}, "a format knows no receiver"},
	"cmd/scopefs-export/internal/receivers": {[]string{"audit", "cmd/scopefs-export/internal/export", "internal/credential", "scope"}, "a receiver gets events, and does not know how far the log is"},
	"cmd/scopefs-export/internal/streams":   {[]string{"audit", "audit/tree", "cmd/scopefs-export/internal/export", "cmd/scopefs-export/internal/fleet", "cmd/scopefs-export/internal/receivers", "cmd/scopefs-export/internal/traces", "internal/anchor", "internal/config", "internal/confine", "internal/driver", "internal/fleet/wire", "internal/streams", "internal/streams/wire", "tools/egress"}, "it follows the log, confined"},
	"internal/streams":                      {[]string{"audit", "internal/config", "internal/credential", "internal/driver", "internal/printable", "internal/streams/wire"}, "it starts a process for each stream, and waits for none"},
	"cmd/scopefs-export/internal/fleet":     {[]string{"audit", "cmd/scopefs-export/internal/receivers", "internal/driver", "internal/fleet/order", "internal/fleet/wire", "internal/placement/wire", "tools/limit"}, "it carries what the daemon shows and operators sign, and decides nothing"},
	"internal/fleet/library":                {[]string{"internal/bounded", "internal/durable", "internal/fleet/order", "scope"}, "what a node took does not depend on who brought it"},
	"internal/fleet/order":                  {[]string{"internal/peer", "scope"}, "what operators sign does not depend on what carries it"},
	"internal/placement/wire":               {[]string{"internal/driver", "scope"}, "what the daemon and the process say, and no more"},
	"internal/placement":                    {[]string{"internal/api", "internal/bounded", "internal/driver", "internal/durable", "internal/placement/wire", "scope"}, "it decides who may change files, and touches none"},
	"internal/fleet/wire":                   {[]string{"audit/tree", "internal/api", "internal/config", "internal/driver", "tools/approvals"}, "what the daemon, a command and the process say, and no more"},
	"internal/fleet":                        {[]string{"audit", "internal/api", "internal/config", "internal/definitions", "internal/driver", "internal/durable", "internal/fleet/library", "internal/fleet/order", "internal/fleet/wire", "internal/placement", "internal/printable", "scope", "tools/approvals", "tools/limit"}, "it checks an order, and decides by the one set of approvals"},
	"internal/fleet/reader":                 {[]string{"internal/api", "internal/config", "internal/credential", "internal/driver", "internal/fleet/wire", "internal/report", "internal/streams", "tools/limit"}, "it reads what others say, and believes nothing"},
	"internal/processes":                    {[]string{"internal/api", "internal/proc"}, "it reads /proc alone"},
	"internal/fleetcmd":                     {[]string{"audit", "internal/api", "internal/bounded", "internal/config", "internal/credential", "internal/definitions", "internal/durable", "internal/exit", "internal/fields", "internal/fleet/order", "internal/fleet/reader", "internal/fleet/wire", "internal/printable", "internal/report", "scope", "scope/agents", "tools/approvals"}, "it shows what nodes have published, and signs"},
	"internal/streams/wire":                 {[]string{"internal/config", "internal/driver"}, "what the daemon and a stream say, and no more"},
	"internal/beside":                       {nil, "where a program is does not depend on what it does"},
	"internal/loopback":                     {nil, "who may ask does not depend on what is answered"},
	"internal/lookup":                       {[]string{"audit", "internal/api", "internal/config", "internal/definitions", "internal/report", "internal/state", "scope", "scope/agents"}, "it reads what commands read, and changes nothing"},
	"internal/consolecmd":                   {[]string{"internal/api", "internal/config", "internal/console", "internal/devices", "internal/exit", "internal/terminal"}, "it starts the page, and shows a link"},
	"internal/devices":                      {[]string{"internal/bounded", "internal/durable", "internal/interrupted"}, "which devices there are does not depend on how they prove it"},
	"internal/push":                         {[]string{"internal/config", "internal/devices", "internal/durable", "tools/egress"}, "a push has nothing of what waits"},
	"internal/console":                      {[]string{"internal/api", "internal/beside", "internal/bounded", "internal/config", "internal/devices", "internal/loopback"}, "it starts a program at an address that it keeps, and does not know its pages"},
	"cmd/scopefs-console":                   {[]string{"cmd/scopefs-console/internal/entry", "cmd/scopefs-console/internal/pages", "internal/api", "internal/config", "internal/confine", "internal/console", "internal/devices"}, "it is a client of the control API, and nothing else"},
	"cmd/scopefs-csi":                       {[]string{"cmd/scopefs-csi/internal/node", "cmd/scopefs-csi/internal/rules", "cmd/scopefs-csi/internal/volumes", "internal/api", "internal/config"}, "it is a client of the control API, and mounts what that has mounted"},
	"cmd/scopefs-csi/internal/node":         {[]string{"cmd/scopefs-csi/internal/rules", "cmd/scopefs-csi/internal/volumes"}, "a request is read before anything is done"},
	"cmd/scopefs-csi/internal/volumes":      {[]string{"cmd/scopefs-csi/internal/rules", "internal/api", "internal/bounded", "internal/durable", "internal/mount", "internal/printable", "scope", "scope/beneath"}, "what a pod has does not depend on how kubelet asks"},
	"cmd/scopefs-csi/internal/rules":        {[]string{"internal/bounded", "internal/fields", "internal/frontmatter", "scope"}, "who gets what is decided without anything else"},
	"cmd/scopefs-console/internal/keys":     {[]string{"internal/devices"}, "a proof does not depend on what it opens"},
	"cmd/scopefs-console/internal/access":   {[]string{"internal/devices"}, "a visitor is the same however it has proved itself"},
	"cmd/scopefs-console/internal/colours":  {[]string{"cmd/scopefs-console/internal/sides", "internal/printable"}, "colours change no text"},
	"cmd/scopefs-console/internal/entry":    {[]string{"cmd/scopefs-console/internal/access", "cmd/scopefs-console/internal/keys", "internal/api", "internal/console", "internal/devices", "internal/loopback"}, "entry does not depend on what is shown"},
	"cmd/scopefs-console/internal/sides":    {nil, "a diff is text"},
	"cmd/scopefs-console/internal/pages":    {[]string{"audit", "cmd/scopefs-console/internal/access", "cmd/scopefs-console/internal/colours", "cmd/scopefs-console/internal/sides", "fs/history", "internal/api", "internal/devices", "internal/printable", "scope", "tools/approvals"}, "what an operator sees and decides goes through the control API"},
	"internal/heart":                        {[]string{"internal/proc"}, "any process of ours may have a heartbeat"},
	"internal/pathwatch":                        {nil, "where a path leads is the kernel's to say, and nobody's of ours"},
	"internal/stores/wire":                  {[]string{"internal/config", "internal/driver", "tools/kv", "tools/messages", "tools/notify", "tools/objects", "tools/sql/engine"}, "what the daemon and the drivers say, and no more"},
	"internal/contextfs":                    {[]string{"fs/callfs", "fs/fusedev", "internal/holder", "internal/heart", "internal/peer", "internal/view", "scope/context", "tools/limit", "tools/sandbox"}, "which call a process works for is told to both ends"},

	"audit/tree":                {nil, "the tree over lines is maths"},
	"audit/trace":               {[]string{"audit"}, "the ids of spans follow from events"},
	"docs/examples/check-proof": {nil, "an example stands alone"},
}

// owners says which packages may import a dependency, so that it can be replaced
// in one place. A key is an import path and stands for what is below it. Tests and
// the tools of tests may import whatever is listed; without packages, only they
// may. docs/dependencies.md has each module, with the reason that it is there.
var owners = map[string]struct {
	packages []string
	why      string
}{
	"github.com/spf13/cobra":                     {[]string{"internal/cli", "internal/consolecmd", "internal/exit", "internal/fleetcmd", "internal/logcmd", "internal/trustcmd", "internal/pages"}, "only the command line parses one"},
	"github.com/hanwen/go-fuse/v2/fuse":          {[]string{"fs", "fs/callfs", "fs/fusedev", "fs/listing", "fs/quota"}, "two file systems, one protocol; go-fuse/v2/fs is not listed, for its node tree resolves by joining paths"},
	"github.com/spf13/cobra/doc":                 {[]string{"internal/pages"}, "each start of the program would pay for it"},
	"github.com/landlock-lsm":                    {[]string{"internal/view", "internal/confine"}, "those who confine themselves"},
	"github.com/elastic/go-seccomp-bpf":          {[]string{"internal/view", "tools/sandbox", "internal/confine"}, "those who confine"},
	"github.com/alecthomas/chroma":               {[]string{"cmd/scopefs-console/internal/colours"}, "text of agents is lexed within one bound"},
	"github.com/bmatcuk/doublestar":              {[]string{"scope", "tools/file", "tools/file/profile", "tools/http", "internal/report"}, "one meaning of a pattern: the operator's and the agent's"},
	"github.com/pelletier/go-toml":               {[]string{"internal/imports"}, "agent files of other programs"},
	"go.yaml.in/yaml":                            {[]string{"cmd/scopefs-csi/internal/rules", "internal/config", "internal/fields", "internal/frontmatter", "internal/programs", "internal/selftest", "scope/agents", "scope/catalog", "scope/hosts", "scope/protect", "internal/imports"}, "what the operator writes"},
	"github.com/coreos/go-systemd":               {[]string{"internal/cli"}, "the daemon does not know which service manager there is"},
	"github.com/fsnotify/fsnotify":               {[]string{"internal/daemon"}, "only the daemon watches"},
	"github.com/stretchr/testify":                {nil, "for tests"},
	"github.com/modelcontextprotocol":            {[]string{"tools/mcp", "tools/upstream"}, "the protocol's two ends"},
	"github.com/google/jsonschema-go":            {[]string{"tools", "tools/ask", "tools/mcp", "tools/upstream"}, "what arguments are"},
	"modernc.org/sqlite":                         {[]string{"cmd/scopefs-stores/internal/engine", "cmd/scopefs-stores/internal/kv", "cmd/scopefs-stores/internal/sqliteconn"}, "statements of agents, and a store in a file, run in confined processes alone"},
	"modernc.org/libc":                           {nil, "for tests"},
	"github.com/minio/minio-go/v7":               {[]string{"cmd/scopefs-stores/internal/objects"}, "a store on an S3 server"},
	"github.com/tidwall/gjson":                   {[]string{"internal/clients"}, "settings of others keep their form"},
	"github.com/tidwall/sjson":                   {[]string{"internal/clients"}, "settings of others keep their form"},
	"github.com/wneessen/go-mail":                {[]string{"cmd/scopefs-stores/internal/mail"}, "e-mail is one kind of channel"},
	"github.com/go-webauthn/webauthn":            {[]string{"cmd/scopefs-console/internal/keys"}, "a passkey is one kind of proof"},
	"rsc.io/qr":                                  {[]string{"cmd/scopefs-console"}, "the link that pairs a device"},
	"github.com/redis/go-redis/v9":               {[]string{"cmd/scopefs-stores/internal/kv"}, "a store on a server"},
	"github.com/nats-io/nats.go":                 {[]string{"cmd/scopefs-stores/internal/messages", "cmd/scopefs-export/internal/fleet", "cmd/scopefs-export/internal/receivers"}, "a store on a server, a receiver of the log, a fleet"},
	"github.com/nats-io/nats-server":             {[]string{"cmd/scopefs-stores/internal/messages"}, "a store on a server in the process of the drivers"},
	"github.com/klauspost/compress":              {[]string{"audit"}, "complete segments of the log"},
	"golang.org/x/mod/sumdb/note":                {[]string{"audit", "audit/tree", "internal/fleet", "internal/fleet/library", "internal/fleet/order", "internal/witness"}, "signed heads of the log, and orders of operators"},
	"golang.org/x/mod/sumdb/tlog":                {[]string{"audit", "audit/tree", "internal/witness"}, "the hash tree of the log"},
	"golang.org/x/time/rate":                     {[]string{"tools/limit"}, "what an agent writes to the log"},
	"github.com/moby/sys/mountinfo":              {[]string{"cmd/scopefs-csi/internal/volumes", "internal/account", "internal/daemon", "internal/mount", "internal/overlay", "internal/session", "tools/sandbox"}, "which views, overlays and control groups are mounted"},
	"github.com/rogpeppe/go-internal/diff":       {[]string{"cmd/scopefs-console/internal/pages", "fs/branch", "fs/history/query", "tools/file", "internal/report", "internal/trust"}, "the diffs of edit_file, of scopefs changes and of approvals, and merges"},
	"github.com/rogpeppe/go-internal/testscript": {nil, "for tests"},
	"github.com/hanwen/go-fuse/v2/posixtest":     {nil, "for tests"},
	"golang.org/x/sys/unix":                      {[]string{"**"}, "constants and types; TestSystemCalls holds which packages make system calls"},
	"golang.org/x/net/bpf":                       {[]string{"tools/sandbox"}, "assembles the filters of a sandbox's sockets"},
	"golang.org/x/net/http2":                     {nil, "for tests"},
	"golang.org/x/net/idna":                      {[]string{"scope"}, "one canonical form of a host's name"},
	"golang.org/x/term":                          {[]string{"internal/terminal", "internal/top"}, "only the command line has a terminal"},
	"github.com/chromedp":                        {nil, "for tests"},
	"github.com/lib/pq":                          {[]string{"cmd/scopefs-stores/internal/postgres"}, "a store on a server"},
	"github.com/creack/pty":                      {nil, "for tests"},
	"github.com/valllabh/ocsf-schema-golang":     {nil, "for tests"},
	"go.opentelemetry.io/collector/pdata":        {[]string{"cmd/scopefs-export/internal/export", "cmd/scopefs-export/internal/receivers"}, "the log for OpenTelemetry"},
	"go.opentelemetry.io/otel":                   {[]string{"cmd/scopefs-export/internal/traces"}, "spans for OpenTelemetry"},
	"go.opentelemetry.io/proto/otlp":             {nil, "for tests"},
	"github.com/prometheus/client_model":         {nil, "for tests"},
	"github.com/prometheus/common":               {nil, "for tests"},
	"google.golang.org/protobuf":                 {[]string{"cmd/scopefs-csi/internal/node"}, "messages of CSI"},
	"google.golang.org/grpc":                     {[]string{"cmd/scopefs-csi", "cmd/scopefs-csi/internal/node"}, "CSI is gRPC; the main program has none"},
	"github.com/container-storage-interface":     {[]string{"cmd/scopefs-csi/internal/node"}, "CSI itself"},
	"github.com/kubernetes-csi/csi-test":         {nil, "for tests"},
	"github.com/onsi":                            {nil, "for tests"},
	"k8s.io":                                     {nil, "for tests"},
	"k8s.io/kubelet":                             {[]string{"cmd/scopefs-csi/internal/node"}, "the registration of plugins"},
	"sigs.k8s.io":                                {nil, "for tests"},
}

// callers may make system calls: for files (convention 8; tools/file runs inside a
// sandbox), and for mounts, namespaces, sockets and confinement.
var callers = []string{"scope/beneath", "internal/beside", "internal/claim", "internal/placement", "internal/folder", "audit", "fs/fusedev", "tools/sandbox", "tools/sandbox/pid1", "tools/file", "tools/file/worker", "internal/account", "internal/anchor", "internal/oneshot", "internal/session", "internal/api", "internal/daemon", "internal/definitions", "internal/doctor", "internal/mount", "internal/view", "internal/cli", "internal/embedded", "internal/importer", "internal/selftest", "internal/terminal",
	"internal/state", "internal/holder", "internal/usage", "internal/proc", "internal/logger", "internal/thread", "internal/credential", "internal/login", "tools/egress", "tools/sql", "tools/bash/tape", "internal/outlive", "internal/driver", "internal/heart", "internal/pathwatch", "internal/contextfs", "internal/devices", "internal/loopback", "internal/tunnels", "tools/egress/tunnel",
	"internal/confine", "cmd/scopefs-export/internal/streams", "cmd/scopefs-stores/internal/drivers", "cmd/scopefs-stores/internal/engine", "cmd/scopefs-stores/internal/messages"} // flock(2), bind(2), socketpair(2), gettid(2), kill(2), recv(2)

// pure are functions of x/sys/unix and syscall that call nobody.
var pure = []string{"ErrnoName", "Mkdev", "SignalName", "ByteSliceToString"}

// exits are the files outside tests that may end the process, with how often.
var exits = map[string]int{
	"integration/demo/pictures.go":                  1,
	"cmd/scopefs/main.go":                           9, // one for each role
	"cmd/scopefs-stores/main.go":                    3, // likewise
	"cmd/scopefs-export/main.go":                    2, // likewise
	"cmd/scopefs-console/main.go":                   1,
	"cmd/scopefs-csi/main.go":                       1,
	"internal/pages/main.go":                        2, // a program of make
	"cmd/scopefs-stores/internal/engine/process.go": 1, // a database without a daemon ends, whatever it executes
	"docs/examples/check-proof/main.go":             1,
	"internal/contextfs/main.go":                    2, // without a daemon it does not know whose call a thread is
	"internal/view/main.go":                         1, // a view without a daemon cannot record: it ends
}

// textReaders may look into an error's text, with the reason.
var textReaders = map[string]string{
	"internal/frontmatter/frontmatter.go": "go.yaml.in/yaml has no type for its errors: their line and their prefix are in the text",
	"tools/validate.go":                   "jsonschema-go has no type for its errors: the way to the property is in the text",
	"tools/upstream/conn.go":              "the SDK's error for a request that was not sent has no exported value, and servers use its code",
}

// topLevel is what may be at the top, beside files whose name starts with a dot.
var topLevel = []string{
	"go.mod", "go.sum", "go.work", "go.work.sum", "cmd", "fs", "scope", "audit", "tools", "internal", "integration",
	"Makefile", "README.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE", "docs", "packaging",
	"bin", "demo", // built, and never committed
}

// A class is a package that stands for all packages beside it.
var classes = []string{"tools/*", "integration/*", "cmd/scopefs-stores/internal/*"}
