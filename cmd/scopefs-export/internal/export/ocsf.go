package export

import (
	"cmp"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/scopefs/scopefs/audit"
)

// ocsfVersion is the version of schema.ocsf.io that OCSF follows.
const ocsfVersion = "1.2.0"

type object = map[string]any

// The classes of events, and the activity of those that have no other: schema.ocsf.io, Classes.
const (
	fileActivity    = 1001
	processActivity = 1007
	networkActivity = 4001
	httpActivity    = 4002
	lifecycle       = 6002
	apiActivity     = 6003
	otherActivity   = 99
)

// fileActivities are the activities of operations on files.
var fileActivities = map[string]int{
	"create": 1, "mkdir": 1, "mknod": 1, "symlink": 1, "link": 1, "read": 2, "readdir": 2, "readlink": 2, "write": 3, "unlink": 4, "rmdir": 4,
	"rename": 5, "rename-from": 5, "setattr": 6, "setxattr": 6, "lookup": 8, "stat": 8, "getxattr": 8, "statfs": 8,
	"open": 14, "open-write": 14,
}

var httpActivities = map[string]int{"CONNECT": 1, "DELETE": 2, "GET": 3, "HEAD": 4, "OPTIONS": 5, "POST": 6, "PUT": 7, "TRACE": 8}

// OCSF returns an event in the Open Cybersecurity Schema Framework. What has no place there is in unmapped.
func OCSF(e audit.Event, from Source) map[string]any {
	o := object{
		"time":     e.Time.UnixMilli(),
		"message":  strings.Join(strings.Fields(strings.Join([]string{e.Event, e.Op, e.Path, e.Target, string(e.Verdict), e.Outcome}, " ")), " "),
		"raw_data": string(e.Raw),
		"metadata": object{
			"version": ocsfVersion, "uid": strconv.FormatUint(e.Seq, 10), "log_name": "scopefs",
			"product":  object{"name": "scopefs", "vendor_name": "scopefs", "version": from.Version},
			"profiles": []string{"host", "security_control"},
		},
		"device": object{"hostname": from.Host, "type_id": 0},
		"actor":  actor(e),
	}
	class, activity := classify(e, o)
	o["class_uid"], o["category_uid"], o["activity_id"], o["type_uid"] = class, class/1000, activity, class*100+activity
	if activity == otherActivity {
		o["activity_name"] = cmp.Or(strings.TrimSpace(e.Op+" "+e.Outcome), e.Event)
	}
	decide(e, o)
	set(o, "status_code", e.Errno)
	set(o, "status_detail", strings.TrimPrefix(e.Outcome+": "+e.Detail, ": "))
	set(o, "duration", e.DurationUS/1000)
	rest := object{}
	for key, value := range map[string]string{
		"agent": e.Agent, "call": e.Call, "parent": e.Parent, "chain": e.Chain, "server": e.Server, "instance": e.Instance, "event": e.Event,
	} {
		set(rest, key, value)
	}
	set(rest, "unrecorded", e.Unrecorded)
	o["unmapped"] = rest
	return o
}

// set sets a field that has a value.
func set[T comparable](o object, key string, value T) {
	var zero T
	if value != zero {
		o[key] = value
	}
}

func actor(e audit.Event) object {
	a := object{"app_name": cmp.Or(e.Agent, "scopefs")}
	process := object{}
	set(process, "pid", e.PID)
	set(process, "name", e.Program)
	if len(process) > 0 {
		a["process"] = process
	}
	if e.UID != nil {
		a["user"] = object{"uid": pointed(e.UID)}
	}
	if e.Session != "" {
		a["session"] = object{"uid": e.Session}
	}
	return a
}

// decide sets how the event was decided, and how it ended.
func decide(e audit.Event, o object) {
	action, disposition, severity, status := 0, 0, 1, 0
	switch e.Verdict {
	case audit.Allow:
		action, disposition, status = 1, 1, 1
	case audit.Deny:
		action, disposition, severity, status = 2, 2, 2, 2
	case audit.Violation:
		action, disposition, severity, status = 2, 2, 4, 2
	}
	if e.Errno != "" || e.Exit != nil && *e.Exit != 0 {
		status = 2
	}
	o["action_id"], o["disposition_id"], o["severity_id"], o["status_id"] = action, disposition, severity, status
	if e.Rule != "" {
		rule := object{"name": e.Rule}
		set(rule, "type", e.RuleKind)
		o["firewall_rule"] = rule
	}
}

// classify adds what the class of an event has, and returns the class and the activity.
func classify(e audit.Event, o object) (class, activity int) {
	switch {
	case e.Event == audit.KindFile:
		o["file"] = file(e.Path)
		if e.Target != "" {
			o["file_result"] = file(e.Target)
		}
		return fileActivity, cmp.Or(fileActivities[e.Op], otherActivity)
	case e.Event == audit.KindNetwork:
		return connection(e, o)
	case e.Event == audit.KindCall, e.Event == audit.KindApproval, e.Event == audit.KindKey:
		o["api"] = object{"operation": cmp.Or(e.Op, e.Event)}
		o["src_endpoint"] = object{"name": cmp.Or(e.Agent, "scopefs")}
		return apiActivity, otherActivity
	case e.Event == audit.KindSandbox && e.Op == "exec":
		o["process"] = object{"cmd_line": e.Target}
		if e.Exit != nil {
			o["exit_code"] = *e.Exit
		}
		if e.Outcome == audit.OutcomeBegin {
			return processActivity, 1
		}
		return processActivity, 2
	}
	o["app"] = object{"name": cmp.Or(e.Agent, "scopefs"), "vendor_name": "scopefs"}
	switch e.Outcome {
	case "started", "mounted":
		return lifecycle, 3
	case "stopped", "ended", "unmounted":
		return lifecycle, 4
	}
	return lifecycle, otherActivity
}

// file returns a file by its path in the view.
func file(name string) object {
	return object{"name": path.Base(name), "path": cmp.Or(name, "."), "type_id": 0}
}

// connection adds a connection, or a request with its URL.
func connection(e audit.Event, o object) (class, activity int) {
	o["src_endpoint"] = object{"name": cmp.Or(e.Agent, "scopefs")}
	if e.Bytes+e.Sent > 0 {
		o["traffic"] = object{"bytes": e.Bytes + e.Sent, "bytes_in": e.Bytes, "bytes_out": e.Sent}
	}
	if e.Op == "publish" { // from the host to the sandbox
		o["src_endpoint"] = object{"name": "host"}
	}
	method, address, isRequest := strings.Cut(e.Target, " ")
	if u, err := url.Parse(address); isRequest && err == nil {
		o["dst_endpoint"] = endpoint(u.Hostname(), u.Port())
		o["http_request"] = object{"http_method": method,
			"url": object{"url_string": address, "hostname": u.Hostname(), "path": u.Path, "scheme": u.Scheme}}
		o["http_response"] = object{"code": e.Status}
		return httpActivity, cmp.Or(httpActivities[method], otherActivity)
	}
	host, port := e.Target, ""
	if i := strings.LastIndexByte(e.Target, ':'); i >= 0 {
		host, port = e.Target[:i], e.Target[i+1:]
	}
	o["dst_endpoint"] = endpoint(host, port)
	switch {
	case e.Verdict == audit.Deny, e.Verdict == audit.Violation:
		return networkActivity, 5 // refuse
	case e.Outcome == "end":
		return networkActivity, 2 // close
	case e.Outcome == "failed":
		return networkActivity, 4
	}
	return networkActivity, 1 // open
}

func endpoint(host, port string) object {
	to := object{"hostname": cmp.Or(host, "unknown")}
	if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		to["port"] = n
	}
	return to
}
