package websocket

import (
	"crypto/rand"
	"strings"

	"github.com/gobwas/ws"
)

// Type is the kind of a message: text or binary.
type Type uint8

// The types of messages, by their opcode.
const (
	TextType   Type = 1
	BinaryType Type = 2
)

const (
	bitFinal  = 0x80 // in the first byte of a frame, which has the opcode
	bitMasked = 0x80 // in the second byte, which has the length
	maskSize  = 4    // RFC 6455 §5.3
)

// Frame is an encoded message. It is immutable, so it may be sent on any number of connections.
type Frame struct {
	bytes []byte // head without mask, and payload
	head  int    // length of the head
}

// Text encodes a text message. The payload must be UTF-8.
func Text(payload []byte) *Frame { return encode(ws.OpText, payload) }

// Of encodes a message of type t.
func Of(t Type, payload []byte) *Frame { return encode(ws.OpCode(t), payload) }

// Payload returns the message. The caller must not change it.
func (f *Frame) Payload() []byte { return f.bytes[f.head:] }

// Type returns the type of the message.
func (f *Frame) Type() Type { return Type(f.bytes[0] &^ bitFinal) }

// encode encodes a message of one frame.
func encode(op ws.OpCode, payload []byte) *Frame {
	b := ws.MustCompileFrame(ws.NewFrame(op, true, payload))
	return &Frame{bytes: b, head: len(b) - len(payload)}
}

// closeFrame encodes a close frame. It cuts the reason to the size of a control frame, between two characters, because
// the reason must be UTF-8 (RFC 6455 §5.5.1).
func closeFrame(code int, reason string) *Frame {
	if most := ws.MaxControlFramePayloadSize - 2; len(reason) > most {
		reason = strings.ToValidUTF8(reason[:most], "")
	}
	return encode(ws.OpClose, ws.NewCloseFrameBody(ws.StatusCode(code), reason))
}

// appendWithMask appends f with a random mask, as a client must send it (§5.3).
func (f *Frame) appendWithMask(dst []byte) []byte {
	var key [maskSize]byte
	rand.Read(key[:]) // never fails
	start := len(dst)
	dst = append(dst, f.bytes[:f.head]...)
	dst[start+1] |= bitMasked
	dst = append(dst, key[:]...)
	payload := len(dst)
	dst = append(dst, f.bytes[f.head:]...)
	ws.Cipher(dst[payload:], key, 0)
	return dst
}
