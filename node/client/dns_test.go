package client

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
)

// nameServer answers every A and AAAA question over UDP on loopback with the address that answer returns for the n-th
// question. An invalid address means that the record does not exist.
func nameServer(t testing.TB, answer func(n int64, v6 bool) netip.Addr) *net.Resolver {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { conn.Close(); <-done })
	go func() {
		defer close(done)
		var asked atomic.Int64
		buf := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if reply := dnsReply(buf[:n], func(v6 bool) netip.Addr { return answer(asked.Add(1), v6) }); reply != nil {
				conn.WriteToUDPAddrPort(reply, from) // a lost answer is requested again
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp4", conn.LocalAddr().String())
	}}
}

// dnsReply answers one question of a query (RFC 1035 §4).
func dnsReply(query []byte, answer func(v6 bool) netip.Addr) []byte {
	if len(query) < 12 {
		return nil
	}
	end := 12
	for end < len(query) && query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5
	if end > len(query) {
		return nil
	}
	kind := binary.BigEndian.Uint16(query[end-4:])
	reply := append([]byte(nil), query[:end]...)
	reply[2], reply[3] = 0x81, 0x80
	clear(reply[6:12])
	if kind != 1 && kind != 28 {
		return reply
	}
	addr := answer(kind == 28)
	if !addr.IsValid() {
		return reply
	}
	data := addr.AsSlice()
	reply[7] = 1
	reply = append(reply, 0xc0, 12, 0, byte(kind), 0, 1, 0, 0, 0, 0, 0, byte(len(data)))
	return append(reply, data...)
}
