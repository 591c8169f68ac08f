package pages

// entryOf is a page that the navigation has.
type entryOf struct {
	Path, Title, Name string
	Badge             bool // with the number of approvals that wait
}

var entries = []entryOf{
	{"/", "Now", "now", false},
	{"/inbox", "Inbox", "inbox", true},
	{"/denials", "Denials", "denials", false},
	{"/changes", "Changes", "changes", false},
	{"/definitions", "Definitions", "definitions", false},
	{"/log", "Log", "log", false},
	{"/charts", "Charts", "charts", false},
	{"/fleet", fleetTitle, "fleet", false},
	{"/devices", "Devices", "devices", false},
}

// fleetTitle is the title of the page that a daemon without a fleet has not.
const fleetTitle = "Fleet"

// navigation returns the entries of a page, and which is its own.
func navigation(p page) (list []struct {
	entryOf
	Here bool
}) {
	for _, e := range entries {
		if e.Title == fleetTitle && !p.Fleet {
			continue
		}
		list = append(list, struct {
			entryOf
			Here bool
		}{e, e.Name == p.Name})
	}
	return list
}
