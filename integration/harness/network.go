package harness

import (
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"
)

func init() { Roles["slow"] = slow }

// slowDelay is what slow delays each packet by, in each direction. It loses one in slowLoss.
const slowDelay, slowLoss = 5 * time.Millisecond, 100

// slow is the interface slow0, for a network namespace whose kernel may lack netem. A client reaches a server of the namespace at an
// address that is routed to the interface: slow sends each packet back with its source and destination exchanged, which leaves the
// checksums as they are. To the server, the client then has that address.
func slow([]string) error {
	tun, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq("slow0")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(tun, unix.TUNSETIFF, request); err != nil {
		return fmt.Errorf("slow0: %w", err)
	}
	type packet struct {
		due  time.Time
		text []byte
	}
	queue := make(chan packet, 1<<14)
	go func() {
		for p := range queue {
			time.Sleep(time.Until(p.due))
			_, _ = unix.Write(tun, p.text) // EIO while the interface is down
		}
	}()
	for {
		text := make([]byte, 1<<16)
		n, err := unix.Read(tun, text)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return fmt.Errorf("slow0: %w", err)
		case n < 20 || text[0]>>4 != 4 || rand.IntN(slowLoss) == 0:
			continue
		}
		for i := 12; i < 16; i++ {
			text[i], text[i+4] = text[i+4], text[i]
		}
		queue <- packet{time.Now().Add(slowDelay), text[:n]}
	}
}
