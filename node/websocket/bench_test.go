package websocket

import (
	"io"
	"net"
	"testing"
)

// BenchmarkWriteFrames compares ways to write 64 frames of 256 bytes: one write each, one write of a joined copy, one
// writev.
func BenchmarkWriteFrames(b *testing.B) {
	frame := Text(make([]byte, 256))
	ways := []struct {
		name string
		send func(c net.Conn, frames []*Frame, buf []byte) error
	}{
		{"each", func(c net.Conn, frames []*Frame, _ []byte) (err error) {
			for _, f := range frames {
				if _, err = c.Write(f.bytes); err != nil {
					return err
				}
			}
			return nil
		}},
		{"joined", func(c net.Conn, frames []*Frame, buf []byte) error {
			buf = buf[:0]
			for _, f := range frames {
				buf = append(buf, f.bytes...)
			}
			_, err := c.Write(buf)
			return err
		}},
		{"writev", func(c net.Conn, frames []*Frame, _ []byte) error {
			bufs := make(net.Buffers, len(frames))
			for i, f := range frames {
				bufs[i] = f.bytes
			}
			_, err := bufs.WriteTo(c)
			return err
		}},
	}
	frames := make([]*Frame, 64)
	for i := range frames {
		frames[i] = frame
	}
	for _, w := range ways {
		b.Run(w.name, func(b *testing.B) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			go func() {
				c, err := l.Accept()
				if err == nil {
					io.Copy(io.Discard, c)
					c.Close()
				}
			}()
			c, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			buf := make([]byte, 0, batchSize)
			for b.Loop() {
				if err := w.send(c, frames, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
