// Package push wakes the devices that are paired with the console: Web Push (RFC 8030) without a payload. A push service
// learns that something waits, and nothing else; a device that it wakes asks the console.
//
// The daemon connects, for the console has no network. It connects to the services that scopefs.yaml names, and the browser's
// endpoint only selects one of them. VAPID (RFC 8292) is a signed text; a message without payload needs no encryption
// (RFC 8291), so no library does.
package push

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/scopefs/scopefs/internal/config"
	"github.com/scopefs/scopefs/internal/devices"
	"github.com/scopefs/scopefs/internal/durable"
	"github.com/scopefs/scopefs/tools/egress"
)

// The bounds of pushes.
const (
	maxEndpoint = 2 << 10          // bytes
	sendTime    = 10 * time.Second // for one push, with its answer
	maxSending  = 4                // at the same time
	pause       = 30 * time.Second // from one push to the next: all that begin to wait meanwhile are one
	lives       = 15 * time.Minute // how long a service keeps a push for a device: as long as a call waits
	proofTime   = time.Hour        // RFC 8292 allows a day
)

// subject is whom a service writes to (RFC 8292, section 2.1): the program, and not its operator.
const subject = "https://github.com/scopefs/scopefs"

// Sender sends pushes. Its methods are safe for concurrent use.
type Sender struct {
	services []config.PushService
	store    *devices.Store
	logger   *slog.Logger
	key      *ecdsa.PrivateKey
	public   string
	wakes    chan struct{}

	roots  *x509.CertPool                                               // nil: the system's
	lookup func(ctx context.Context, host string) ([]netip.Addr, error) // nil: the system's
	time   time.Duration                                                // for one push
}

// Open returns a sender to services, with the key in {state}/push.key, which it makes if there is none.
func Open(state string, services []string, store *devices.Store, logger *slog.Logger) (*Sender, error) {
	s := &Sender{store: store, logger: logger, wakes: make(chan struct{}, 1), time: sendTime}
	for _, text := range services {
		one, err := config.ParsePushService(text)
		if err != nil {
			return nil, err
		}
		s.services = append(s.services, one)
	}
	var err error
	if s.key, err = openKey(state); err != nil {
		return nil, fmt.Errorf("push: %w", err)
	}
	public, err := s.key.PublicKey.ECDH()
	if err != nil {
		return nil, fmt.Errorf("push: %w", err)
	}
	s.public = base64.RawURLEncoding.EncodeToString(public.Bytes())
	return s, nil
}

const keyFile = "push.key"

// openKey reads the key, or makes one. Without it each device would have to subscribe again.
func openKey(state string) (*ecdsa.PrivateKey, error) {
	root, err := os.OpenRoot(state)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	der, err := root.ReadFile(keyFile)
	if err == nil {
		key, err := x509.ParseECPrivateKey(der)
		if err != nil || key.Curve != elliptic.P256() {
			return nil, fmt.Errorf("%s is no key: remove it, and subscribe again on each device", keyFile)
		}
		return key, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if der, err = x509.MarshalECPrivateKey(key); err != nil {
		return nil, err
	}
	return key, durable.Replace(root, keyFile, der, durable.Options{})
}

// Key returns the public key that a browser subscribes for: base64url of the point.
func (s *Sender) Key() string { return s.public }

// Subscribe sets where a device is woken; "": nowhere.
func (s *Sender) Subscribe(id, endpoint string) error {
	if endpoint != "" {
		if _, _, err := s.check(endpoint); err != nil {
			return err
		}
	}
	return s.store.Update(id, func(d *devices.Device) { d.Push = endpoint })
}

// check returns the URL of an endpoint, and the service that it is of.
func (s *Sender) check(endpoint string) (*url.URL, string, error) {
	at, err := url.Parse(endpoint)
	if err != nil || len(endpoint) > maxEndpoint || at.Scheme != "https" || at.User != nil || at.Fragment != "" || at.Opaque != "" {
		return nil, "", errors.New("push: the endpoint is no URL of https")
	}
	service, err := config.PushHost(at.Host)
	if err != nil || !slices.ContainsFunc(s.services, func(one config.PushService) bool { return one.Match(service) }) {
		return nil, "", fmt.Errorf("push: %.80q is no service of console.push in scopefs.yaml: add it, if you trust this one", at.Host)
	}
	return at, service, nil
}

// Wake wakes all devices soon. It does not block.
func (s *Sender) Wake() {
	select {
	case s.wakes <- struct{}{}:
	default:
	}
}

// Run sends until ctx ends. waits reports whether something still waits.
func (s *Sender) Run(ctx context.Context, waits func() bool) { s.run(ctx, waits, s.wake) }

func (s *Sender) run(ctx context.Context, waits func() bool, wake func(context.Context)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wakes:
		}
		if !waits() {
			continue
		}
		wake(ctx)
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// wake wakes each device that has subscribed.
func (s *Sender) wake(ctx context.Context) {
	list, err := s.store.List()
	if err != nil {
		s.logger.Warn("no device is woken", "err", err)
		return
	}
	turns := make(chan struct{}, maxSending)
	var sending sync.WaitGroup
	for _, d := range list {
		if d.Push == "" {
			continue
		}
		turns <- struct{}{}
		sending.Go(func() {
			defer func() { <-turns }()
			switch err := s.send(ctx, d.Push); {
			case errors.Is(err, errGone):
				err = s.store.Update(d.ID, func(kept *devices.Device) {
					if kept.Push == d.Push {
						kept.Push = ""
					}
				})
				s.logger.Info("a device has ended its push subscription", "device", d.Name, "err", err)
			case err != nil && ctx.Err() == nil:
				s.logger.Warn("a device is not woken", "device", d.Name, "err", err)
			}
		})
	}
	sending.Wait()
}

// errGone reports that the service has the subscription no more: RFC 8030, section 7.3.
var errGone = errors.New("the push service knows the subscription no more")

// send sends one push. It reads no body of an answer, and follows no redirect. Its errors have no path of an endpoint, which
// is a secret.
func (s *Sender) send(ctx context.Context, endpoint string) error {
	at, service, err := s.check(endpoint)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.time)
	defer cancel()
	proof, err := s.proof("https://"+strings.TrimSuffix(service, ":443"), time.Now())
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), http.NoBody)
	if err != nil {
		return errors.New("push: the endpoint is no URL")
	}
	r.Header = http.Header{
		"Authorization": {"vapid t=" + proof + ", k=" + s.public}, "Ttl": {fmt.Sprint(int(lives.Seconds()))}, "Urgency": {"high"},
		"Topic":      {"waits"}, // a later one replaces it: RFC 8030, section 5.4
		"User-Agent": {""},
	}
	transport := &http.Transport{
		DialContext: s.dialer(service).DialContext, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: s.roots},
		TLSHandshakeTimeout: s.time, MaxResponseHeaderBytes: 16 << 10, DisableKeepAlives: true, DisableCompression: true,
	}
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return fmt.Errorf("push: %s: %w", service, err)
	}
	resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusNotFound, resp.StatusCode == http.StatusGone:
		return errGone
	case resp.StatusCode/100 != 2:
		return fmt.Errorf("push: %s answers %d", service, resp.StatusCode)
	}
	return nil
}

// dialer returns the door to a service: public addresses, or the one that the operator has written.
func (s *Sender) dialer(service string) *egress.Dialer {
	d := &egress.Dialer{Lookup: s.lookup}
	host, _, _ := net.SplitHostPort(service)
	if ip, err := netip.ParseAddr(host); err == nil {
		d.Pinned = []netip.Prefix{netip.PrefixFrom(ip, ip.BitLen())}
	}
	return d
}

// proof returns the token that says for which service the push is: RFC 8292, section 2; ES256 of RFC 7518, section 3.4.
func (s *Sender) proof(audience string, now time.Time) (string, error) {
	claims, err := json.Marshal(map[string]any{"aud": audience, "exp": now.Add(proofTime).Unix(), "sub": subject})
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"typ":"JWT","alg":"ES256"}`)) + "." + base64.RawURLEncoding.EncodeToString(claims)
	sum := sha256.Sum256([]byte(text))
	a, b, err := ecdsa.Sign(rand.Reader, s.key, sum[:])
	if err != nil {
		return "", err
	}
	var signature [64]byte
	a.FillBytes(signature[:32])
	b.FillBytes(signature[32:])
	return text + "." + base64.RawURLEncoding.EncodeToString(signature[:]), nil
}
