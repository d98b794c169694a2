// Package conversations keeps what two agents said to each other: the state machine as a pure function
// ([Conversation.Next]), the transcript as a hash chain ([Link]), and a [Book] of them over the store.
//
// It neither sends nor signs nor answers, and has no clock: the caller says when. Start with [Book.Load]; record what
// happened on the [Thread] it returns, and put the thread into the caller's step.
//
// What holds always: a conversation that has ended stays ended. Whether it has expired is judged when it is looked at,
// to the second, and never depends on a sweeper. A peer's conversation id means something beside that peer only
// (AM-37).
package conversations
