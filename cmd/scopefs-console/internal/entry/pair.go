package entry

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"time"

	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/access"
	"github.com/scopefs/scopefs/cmd/scopefs-console/internal/keys"
	"github.com/scopefs/scopefs/internal/devices"
)

// The bounds of devices.
const (
	maxPairs      = 16  // links that are not used yet
	maxChallenges = 256 // that are not answered yet
	maxEach       = 16  // of them for one address
	maxOfDevice   = 8   // logins

	seenEvery  = time.Minute
	watchEvery = time.Second
)

// pairing is a link that pairs a device.
type pairing struct {
	name  string
	role  devices.Role
	until time.Time
}

// challenge waits for its answer.
type challenge struct {
	keys.Challenge
	n     uint64 // in the order of requests
	from  netip.Addr
	until time.Time
	token [sha256.Size]byte // of a pairing
}

// PairLink returns the path of a link that pairs a device, once.
func (d *Door) PairLink(name string, role devices.Role) (string, error) {
	if !devices.All.Covers(role) {
		return "", errors.New("the role is look, decide or all")
	}
	if err := d.store.CanAdd(name); err != nil {
		return "", err
	}
	if path, err := d.store.Path(); err != nil {
		return "", err
	} else if path != "" && path != d.Root {
		return "", errors.New("another console has paired a device since this one started: start this one again")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire()
	for _, p := range d.pairs {
		if p.name == name {
			return "", errors.New("a link for device " + name + " waits already: use it, give another name, or wait five minutes")
		}
	}
	if len(d.pairs) >= maxPairs {
		return "", errors.New("there are many links that nobody has used: use one, or wait five minutes")
	}
	token := rand.Text()
	d.pairs[sha256.Sum256([]byte(token))] = pairing{name, role, d.now().Add(linkTime)}
	return d.Root + "/pair/" + token, nil
}

// pairing returns what a token pairs.
func (d *Door) pairing(token string) (pairing, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire()
	p, ok := d.pairs[sha256.Sum256([]byte(token))]
	return p, ok
}

var (
	errLink  = errors.New("this link was used, or is older than five minutes")
	errStale = errors.New("the page waited for more than two minutes, or its answer was used: load it again")
	errKey   = errors.New("this key is not that of a paired device: the operator pairs it with scopefs console pair")
)

// wait keeps a challenge until its answer. Where there are too many, the oldest ends of the address that has the most.
func (d *Door) wait(c challenge) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire()
	of := map[netip.Addr]int{}
	for _, other := range d.challenges {
		of[other.from]++
	}
	if own := of[c.from] >= maxEach; own || len(d.challenges) >= maxChallenges {
		var end *challenge
		for _, other := range d.challenges {
			if own && other.from != c.from {
				continue
			}
			if end == nil || of[other.from] > of[end.from] || of[other.from] == of[end.from] && other.n < end.n {
				end = &other
			}
		}
		delete(d.challenges, end.ID)
	}
	d.asked++
	c.n, c.until = d.asked, d.now().Add(keys.Time)
	d.challenges[c.ID] = c
}

// take returns the challenge that an answer of a request is for. There is no second answer.
func (d *Door) take(r *http.Request, id string, pairs bool) (challenge, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.expire()
	c, ok := d.challenges[id]
	delete(d.challenges, id)
	if !ok || c.from != from(r) || c.Origin != originOf(r) || pairs != (c.Device != "") {
		return challenge{}, errStale
	}
	return c, nil
}

// A step is what a script of the door's pages asks for.
type step func(w http.ResponseWriter, r *http.Request, text []byte) (any, error)

// step answers a request of a script. An error is for a person.
func (d *Door) step(f step) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		var text json.RawMessage
		var reply any
		err := json.NewDecoder(r.Body).Decode(&text)
		if err == nil {
			reply, err = f(w, r, text)
		}
		if err != nil {
			w.WriteHeader(http.StatusForbidden)
			reply = map[string]string{"error": err.Error()}
		}
		_ = json.NewEncoder(w).Encode(reply)
	}
}

// next is the answer that lets a browser in.
type next struct {
	Next string `json:"next"`
}

// beginPair asks for the key of a new device. It does not use the link.
func (d *Door) beginPair(_ http.ResponseWriter, r *http.Request, text []byte) (any, error) {
	var said struct{ Token string }
	if err := json.Unmarshal(text, &said); err != nil {
		return nil, err
	}
	p, ok := d.pairing(said.Token)
	if !ok {
		return nil, errLink
	}
	c, asked, err := keys.Pair(rand.Text(), originOf(r), rand.Text(), p.name)
	if err != nil {
		return nil, err
	}
	d.wait(challenge{Challenge: c, from: from(r), token: sha256.Sum256([]byte(said.Token))})
	return asked, nil
}

// pair pairs the device that has proved its key, and logs it in.
func (d *Door) pair(w http.ResponseWriter, r *http.Request, text []byte) (any, error) {
	var a keys.Answer
	if err := json.Unmarshal(text, &a); err != nil {
		return nil, err
	}
	c, err := d.take(r, a.ID, true)
	if err != nil {
		return nil, err
	}
	device := devices.Device{ID: c.Device, Paired: d.now().Round(time.Second), Seen: d.now().Round(time.Second), From: shown(from(r))}
	d.mu.Lock()
	p, ok := d.pairs[c.token]
	d.mu.Unlock()
	if !ok {
		return nil, errLink
	}
	device.Name, device.Role = p.name, p.role
	if err := keys.Paired(c.Challenge, a, &device); err != nil {
		return nil, err
	}
	d.mu.Lock()
	d.expire()
	_, ok = d.pairs[c.token] // which another browser may have used meanwhile
	delete(d.pairs, c.token)
	d.mu.Unlock()
	if !ok {
		return nil, errLink
	}
	if err := d.record(r.Context(), device); err != nil {
		return nil, fmt.Errorf("it is not in the log, and not paired: %w", err)
	}
	if err := d.store.Add(device, d.Root); err != nil {
		return nil, err
	}
	return d.letIn(w, r, device), nil
}

// beginLogin asks for the key of a device.
func (d *Door) beginLogin(_ http.ResponseWriter, r *http.Request, _ []byte) (any, error) {
	c, asked, err := keys.Login(rand.Text(), originOf(r))
	if err != nil {
		return nil, err
	}
	d.wait(challenge{Challenge: c, from: from(r)})
	return asked, nil
}

// logIn logs in the device that has proved its key.
func (d *Door) logIn(w http.ResponseWriter, r *http.Request, text []byte) (any, error) {
	var a keys.Answer
	if err := json.Unmarshal(text, &a); err != nil {
		return nil, err
	}
	c, err := d.take(r, a.ID, false)
	if err != nil {
		return nil, err
	}
	device, err := keys.LoggedIn(c.Challenge, a, d.store.Get)
	if err != nil {
		return nil, errKey // of a device that exists or not
	}
	now := d.now().Round(time.Second)
	err = d.store.Update(device.ID, func(kept *devices.Device) { kept.Passkey, kept.Seen, kept.From = device.Passkey, now, shown(from(r)) })
	if err != nil {
		return nil, err
	}
	return d.letIn(w, r, device), nil
}

// letIn gives a device a cookie. Its oldest login ends if it has many.
func (d *Door) letIn(w http.ResponseWriter, r *http.Request, device devices.Device) next {
	d.mu.Lock()
	defer d.mu.Unlock()
	of, oldest := 0, [sha256.Size]byte{}
	for key, l := range d.logins {
		if l.visitor.ID == device.ID {
			if of++; of == 1 || l.used.Before(d.logins[oldest].used) {
				oldest = key
			}
		}
	}
	if of >= maxOfDevice {
		d.end(oldest)
	}
	d.setCookie(w, r, d.add(access.Visitor{Device: device.Name, ID: device.ID, Role: device.Role}, from(r)))
	return next{d.Root + "/"}
}

// known reports whether the device of a login is paired still, in the same role. It may read the disk: the caller does not
// hold mu.
func (d *Door) known(l *login) (devices.Device, bool) {
	device, err := d.store.Get(l.visitor.ID)
	return device, err == nil && device.Role == l.visitor.Role
}

// Watch ends the logins that have expired, and those of devices that were removed, until ctx ends. So their streams end too.
func (d *Door) Watch(ctx context.Context) {
	every := time.NewTicker(watchEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
			d.sweep()
		case <-ctx.Done():
			return
		}
	}
}

func (d *Door) sweep() {
	d.mu.Lock()
	d.expire()
	all := maps.Clone(d.logins)
	d.mu.Unlock()
	for key, l := range all {
		if l.visitor.ID == "" {
			continue
		}
		if _, ok := d.known(l); !ok {
			d.mu.Lock()
			d.end(key)
			d.mu.Unlock()
		}
	}
}
