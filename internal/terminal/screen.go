package terminal

import (
	"maps"
	"slices"
	"strings"
)

// screen follows the modes of the user's terminal that a command has changed. Some make the terminal type, at a movement of the mouse for
// example: the shell would read that as commands.
type screen struct {
	sequence  []byte
	alternate bool
	changed   map[string]bool // private modes that are not as usual, and whether they are set
	keyboard  bool            // the keyboard's protocol: that of kitty
}

// usual are the private modes of DEC and xterm's ctlseqs that outlive no run, and whether they are set for a shell: cursor keys, wrap,
// cursor, mouse, focus, alternate screens, bracketed paste, synchronized output, reports of colours and sizes.
var usual = map[string]bool{
	"1": false, "7": true, "25": true, "9": false, "1000": false, "1001": false, "1002": false, "1003": false, "1004": false,
	"47": false, "1047": false, "1049": false, "2004": false, "2026": false, "2031": false, "2048": false,
}

func (s *screen) follow(p []byte) {
	for _, b := range p {
		switch {
		case b == 0x1b:
			s.sequence = append(s.sequence[:0], b)
		case b == 0x9b: // CSI of eight bits, or of two bytes in UTF-8
			s.sequence = append(s.sequence[:0], 0x1b, '[')
		case len(s.sequence) == 0:
		case len(s.sequence) == 1 && b == 'c': // RIS
			*s = screen{}
		case len(s.sequence) == 1 && b != '[', len(s.sequence) > 32:
			s.sequence = s.sequence[:0]
		case len(s.sequence) == 1 || b < 0x40 || b > 0x7e:
			s.sequence = append(s.sequence, b)
		default:
			s.control(string(s.sequence[2:]), b)
			s.sequence = s.sequence[:0]
		}
	}
}

// control follows a control sequence.
func (s *screen) control(parameters string, final byte) {
	modes, private := strings.CutPrefix(parameters, "?")
	switch {
	case private && (final == 'h' || final == 'l'):
		for mode := range strings.SplitSeq(modes, ";") {
			s.mode(mode, final == 'h')
		}
	case final == 'u' && (strings.HasPrefix(parameters, ">") || strings.HasPrefix(parameters, "=")):
		s.keyboard = true
	}
}

func (s *screen) mode(mode string, set bool) {
	if mode == "47" || mode == "1047" || mode == "1049" {
		s.alternate = set
	}
	before, known := usual[mode]
	switch {
	case !known:
	case set == before:
		delete(s.changed, mode)
	default:
		if s.changed == nil {
			s.changed = map[string]bool{}
		}
		s.changed[mode] = set
	}
}

// tidy returns what makes the modes as usual, and again what makes them what the command has set.
func (s *screen) tidy() (tidy, again string) {
	letter := map[bool]string{false: "l", true: "h"}
	for _, mode := range slices.Sorted(maps.Keys(s.changed)) {
		set := s.changed[mode]
		tidy += "\x1b[?" + mode + letter[!set]
		again += "\x1b[?" + mode + letter[set]
	}
	if s.keyboard { // what has been pushed, and what stays; the command may ask for it again
		tidy += "\x1b[<9u\x1b[=0u"
	}
	return tidy, again
}
