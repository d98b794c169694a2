// Package conversations stores the messages that two agents send each other. It has the state machine as a pure
// function ([Conversation.Next]), the transcript as a hash chain ([Link]), and the [Book] of all conversations in the
// store. It does not send, sign or answer messages. Start with [Book.Do]: its caller passes a function that records
// events on a [Unit] and adds the changes of records that belong to them. Do commits all of it together, or calls the
// function again if a row changed meanwhile.
//
// The invariants: A conversation that has ended stays ended. The expiry of a conversation is computed whenever somebody
// reads it, and never depends on a sweep. A conversation id identifies a conversation only together with the peer
// (AM-37).
//
// This package is a part of the program, not an API for other modules: it may change with every commit.
package conversations
