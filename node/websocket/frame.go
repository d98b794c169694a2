package websocket

import (
	"crypto/rand"
	"encoding/binary"
	"strings"
)

// Type is the kind of a message: text or binary.
type Type uint8

// The types of messages, by their opcode.
const (
	TextType   Type = 1
	BinaryType Type = 2
)

// The control opcodes of RFC 6455 §5.5, and the parts of the head of a frame.
const (
	opClose = 8
	opPing  = 9
	opPong  = 10

	bitFinal  = 0x80 // in the first byte, which has the opcode
	bitMasked = 0x80 // in the second byte, which has the length

	maxFrameHead      = 10  // without a mask
	maskSize          = 4   // §5.3
	maxControlPayload = 125 // §5.5
)

// Frame is an encoded message. It is immutable, so it may be sent on any number of connections.
type Frame struct {
	bytes []byte // head without mask, and payload
	head  int    // length of the head
}

// Text encodes a text message. The payload must be UTF-8.
func Text(payload []byte) *Frame { return encode(byte(TextType), payload) }

// Of encodes a message of type t.
func Of(t Type, payload []byte) *Frame { return encode(byte(t), payload) }

// Payload returns the message. The caller must not change it.
func (f *Frame) Payload() []byte { return f.bytes[f.head:] }

// Type returns the type of the message.
func (f *Frame) Type() Type { return Type(f.bytes[0] &^ bitFinal) }

// encode encodes a message of one frame. The head has one of the three forms of a length (RFC 6455 §5.2).
func encode(op byte, payload []byte) *Frame {
	b := make([]byte, 0, maxFrameHead+len(payload))
	switch n := len(payload); {
	case n <= 125:
		b = append(b, bitFinal|op, byte(n))
	case n <= 0xffff:
		b = append(b, bitFinal|op, 126)
		b = binary.BigEndian.AppendUint16(b, uint16(n))
	default:
		b = append(b, bitFinal|op, 127)
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return &Frame{bytes: append(b, payload...), head: len(b)}
}

// closeFrame encodes a close frame. It cuts the reason to the size of a control frame, between two characters, because
// the reason must be UTF-8 (RFC 6455 §5.5.1).
func closeFrame(code int, reason string) *Frame {
	payload := binary.BigEndian.AppendUint16(nil, uint16(code))
	if maxReason := maxControlPayload - len(payload); len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	payload = append(payload, reason...)
	return encode(opClose, payload)
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
	for i := range dst[payload:] {
		dst[payload+i] ^= key[i&3]
	}
	return dst
}
