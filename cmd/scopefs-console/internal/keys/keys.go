// Package keys proves that a browser has a device's private key: a passkey (WebAuthn), or a key that the browser keeps and
// does not give to scripts (WebCrypto, in IndexedDB), where there is no passkey.
//
// A proof answers a challenge, and names the origin of the page that asked for it. So neither another site nor a server at
// another port gets one that counts here.
package keys

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"net/url"
	"time"

	"github.com/go-webauthn/webauthn/protocol"
	"github.com/go-webauthn/webauthn/webauthn"

	"github.com/scopefs/scopefs/internal/devices"
)

// Time bounds the wait for a proof.
const Time = 2 * time.Minute

// ErrProof reports that a proof is not one of the device's key, for this challenge, from this origin.
var ErrProof = errors.New("the key does not prove it")

// Challenge asks a browser for a proof: that it has the key of a device, or of the one that it pairs.
type Challenge struct {
	ID     string // random, for one answer
	Origin string // of the page
	Device string // the id of a device that is paired; "": one that is known already

	session *webauthn.SessionData // nil: the origin can have no passkey
}

// Asked is a challenge as the script of the page gets it.
type Asked struct {
	ID      string `json:"id"`
	Device  string `json:"device,omitempty"`
	Passkey any    `json:"passkey,omitempty"` // options of navigator.credentials; absent: this origin has no passkeys
}

// Answer is what the script answers: a passkey's credential, or a signature by the browser's key.
type Answer struct {
	ID        string          `json:"id"`
	Passkey   json.RawMessage `json:"passkey,omitempty"`
	Key       []byte          `json:"key,omitempty"` // the public key, when the device is paired: PKIX
	Device    string          `json:"device,omitempty"`
	Signature []byte          `json:"signature,omitempty"` // of Message: ECDSA with SHA-256, r and s of 32 bytes each
}

// Message is what the browser's key signs.
func Message(c Challenge, device string) []byte {
	do := "log in"
	if c.Device != "" {
		do = "pair"
	}
	return []byte("scopefs console: " + do + "\n" + c.Origin + "\n" + c.ID + "\n" + device)
}

// user is a device as go-webauthn wants it.
type user struct {
	id, name    string
	credentials []webauthn.Credential
}

func (u user) WebAuthnID() []byte                         { return []byte(u.id) }
func (u user) WebAuthnName() string                       { return u.name }
func (u user) WebAuthnDisplayName() string                { return u.name }
func (u user) WebAuthnCredentials() []webauthn.Credential { return u.credentials }

// party is the relying party of an origin; nil: it can have no passkey, for its host is an address. WebAuthn, section 5.1.2.
func party(origin string) (*webauthn.WebAuthn, error) {
	at, err := url.Parse(origin)
	if err != nil {
		return nil, err
	}
	name := at.Hostname()
	if _, err := netip.ParseAddr(name); err == nil {
		return nil, nil
	}
	timeout := webauthn.TimeoutConfig{Enforce: true, Timeout: Time, TimeoutUVD: Time}
	return webauthn.New(&webauthn.Config{
		RPID: name, RPDisplayName: "scopefs console", RPOrigins: []string{origin},
		AttestationPreference: protocol.PreferNoAttestation,
		AuthenticatorSelection: protocol.AuthenticatorSelection{
			ResidentKey: protocol.ResidentKeyRequirementRequired, RequireResidentKey: protocol.ResidentKeyRequired(),
			UserVerification: protocol.VerificationRequired,
		},
		Timeouts:                          webauthn.TimeoutsConfig{Login: timeout, Registration: timeout},
		ExtensionsUnsolicitedOutputPolicy: protocol.UnsolicitedOutputPolicyIgnore, // none of them means anything here
	})
}

// Pair returns the challenge to pair a device with an id and a name.
func Pair(id, origin, device, name string) (Challenge, Asked, error) {
	c, asked := Challenge{ID: id, Origin: origin, Device: device}, Asked{ID: id, Device: device}
	w, err := party(origin)
	if err != nil || w == nil {
		return c, asked, err
	}
	options, session, err := w.BeginRegistration(user{id: device, name: name})
	if err != nil {
		return c, asked, err
	}
	c.session, asked.Passkey = session, options.Response
	return c, asked, nil
}

// Login returns the challenge to log in.
func Login(id, origin string) (Challenge, Asked, error) {
	c, asked := Challenge{ID: id, Origin: origin}, Asked{ID: id}
	w, err := party(origin)
	if err != nil || w == nil {
		return c, asked, err
	}
	options, session, err := w.BeginDiscoverableLogin(webauthn.WithUserVerification(protocol.VerificationRequired))
	if err != nil {
		return c, asked, err
	}
	c.session, asked.Passkey = session, options.Response
	return c, asked, nil
}

// Paired checks the answer to a challenge of Pair, and puts its public key into the device.
func Paired(c Challenge, a Answer, d *devices.Device) error {
	if a.Passkey == nil {
		if err := verify(a.Key, Message(c, d.ID), a.Signature); err != nil {
			return err
		}
		d.Key, d.Origin = a.Key, c.Origin
		return nil
	}
	if c.session == nil {
		return fmt.Errorf("%w: this address has no passkeys", ErrProof)
	}
	w, err := party(c.Origin)
	if err != nil {
		return err
	}
	parsed, err := protocol.ParseCredentialCreationResponseBytes(a.Passkey)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProof, err)
	}
	got, err := w.CreateCredential(user{id: d.ID, name: d.Name}, *c.session, parsed)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProof, err)
	}
	d.Passkey, err = json.Marshal(got)
	return err
}

// LoggedIn checks the answer to a challenge of Login, and returns the device. The counter of its passkey may have changed.
// find returns the device with an id.
func LoggedIn(c Challenge, a Answer, find func(id string) (devices.Device, error)) (d devices.Device, err error) {
	if a.Passkey == nil {
		if d, err = find(a.Device); err != nil {
			return d, err
		}
		if d.Key == nil {
			return d, fmt.Errorf("%w: the device has a passkey", ErrProof)
		}
		// A server that gets the port of a console that has ended may let the browser sign anything: it is of this origin.
		if d.Origin != c.Origin {
			return d, fmt.Errorf("%w: the browser has its key for pages of %s", ErrProof, d.Origin)
		}
		return d, verify(d.Key, Message(c, d.ID), a.Signature)
	}
	if c.session == nil {
		return d, fmt.Errorf("%w: this address has no passkeys", ErrProof)
	}
	w, err := party(c.Origin)
	if err != nil {
		return d, err
	}
	parsed, err := protocol.ParseCredentialRequestResponseBytes(a.Passkey)
	if err != nil {
		return d, fmt.Errorf("%w: %w", ErrProof, err)
	}
	got, err := w.ValidateDiscoverableLogin(func(_, handle []byte) (webauthn.User, error) {
		if d, err = find(string(handle)); err != nil {
			return nil, err
		}
		var credential webauthn.Credential
		if d.Passkey == nil {
			return nil, ErrProof
		}
		if err := json.Unmarshal(d.Passkey, &credential); err != nil {
			return nil, err
		}
		return user{d.ID, d.Name, []webauthn.Credential{credential}}, nil
	}, *c.session, parsed)
	switch {
	case err != nil:
		return d, fmt.Errorf("%w: %w", ErrProof, err)
	case got.Authenticator.CloneWarning: // WebAuthn, section 7.2, step 22
		return d, fmt.Errorf("%w: the passkey's counter went back, as that of a copy does: remove the device, and pair it again", ErrProof)
	}
	d.Passkey, err = json.Marshal(got)
	return d, err
}

// verify checks a signature by the browser's key.
func verify(key, message, signature []byte) error {
	parsed, err := x509.ParsePKIXPublicKey(key)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProof, err)
	}
	public, ok := parsed.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() || len(signature) != 64 {
		return fmt.Errorf("%w: want ECDSA with P-256", ErrProof)
	}
	if again, err := x509.MarshalPKIXPublicKey(public); err != nil || !bytes.Equal(again, key) {
		return fmt.Errorf("%w: the key has another form", ErrProof)
	}
	sum := sha256.Sum256(message)
	if !ecdsa.Verify(public, sum[:], new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])) {
		return ErrProof
	}
	return nil
}
