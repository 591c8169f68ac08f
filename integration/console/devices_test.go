package console

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"

	"github.com/scopefs/scopefs/integration/harness"
)

// TestDevicesPage: the operator sees the paired devices, and removes one. A device removes itself, and no other one beyond
// its role.
func TestDevicesPage(t *testing.T) {
	h := harness.NewHost(t, map[string]string{"bob": ""})
	paired := func(name, role string) (*served, *browser) {
		s := servePair(t, h, name, role)
		b := browse(t, s.link, 360, 740)
		b.click("#browser")
		b.reads("No session runs")
		b.click(`nav a[href$="/devices"]`)
		b.sees(`document.querySelectorAll("main form").length === 1`)
		b.reads(name + ", this device")
		b.axe("devices of " + name)
		return s, b
	}
	remove := func(b *browser, s *served, path, id string) int {
		return awaited[int](b, fmt.Sprintf(`fetch(%q, {method: "POST", body: new URLSearchParams({id: %q})}).then((r) => r.status)`, s.root()+path, id))
	}
	const id = `document.querySelector("main form input[name=id]").value`
	s, phone := paired("phone", "decide")
	phone.shot("devices-phone")
	own := value[string](phone, id)
	s2, tablet := paired("tablet", "look")
	other := value[string](tablet, id)
	assert.Equal(t, http.StatusForbidden, remove(phone, s, "/devices", other))
	assert.Equal(t, http.StatusForbidden, remove(phone, s, "/devices", own))
	assert.Equal(t, http.StatusBadRequest, remove(phone, s, "/devices/own", other))
	assert.Equal(t, http.StatusBadRequest, remove(tablet, s2, "/devices/own", own))

	operator := serve(t, h)
	b := browse(t, operator.link, 1280, 900)
	b.reads("No session runs")
	b.open(operator, "/devices")
	b.sees(`document.querySelectorAll("main tbody tr").length === 2 && document.querySelectorAll("main form").length === 2`)
	b.reads("127.0.0.1")
	assert.False(t, value[bool](b, `document.body.innerText.includes("this device")`))
	b.axe("devices")
	b.shot("devices")
	assert.Equal(t, http.StatusBadRequest, remove(b, operator, "/devices/own", own), "the operator has no device")
	assert.GreaterOrEqual(t, remove(b, operator, "/devices", "unknown"), http.StatusBadRequest)
	b.do(chromedp.Click(`button[aria-label="Remove tablet"]`))
	b.reads("tablet is removed.")
	b.sees(`document.querySelectorAll("main tbody tr").length === 1`)
	tablet.reads("no longer logged in")
	tablet.open(s2, "/")
	tablet.reads("You are not logged in")
	assert.Contains(t, h.Must("audit", "--json"), `tablet, role look, as \"console\"`)

	phone.open(s, "/devices")
	phone.click(`button[aria-label="Remove phone"]`)
	phone.reads("phone is removed.")
	phone.open(s, "/")
	phone.reads("You are not logged in")
	assert.Equal(t, "", h.Must("console", "devices"))
	assert.Contains(t, h.Must("audit", "--json"), `phone, role decide, as \"console, device phone\"`)
	b.open(operator, "/devices")
	b.reads("No device is paired.")
}
