const TOY_GUESS = {
 "rows": [
  {
   "text": "USR: Here it is, 594-94484-9338",
   "read": true,
   "score": -1.712
  },
  {
   "text": "USR: I live at 129 Andrew Junctions South Marvinstad, NH 35455.",
   "read": true,
   "score": -1.198
  },
  {
   "text": "USR: 0680061838 is mine.",
   "read": true,
   "score": -1.534
  },
  {
   "text": "USR: The name is Michael MacGloin.",
   "read": false,
   "score": -3.381
  },
  {
   "text": "USR: The name is Tanya Santiago.",
   "read": false,
   "score": -2.655
  },
  {
   "text": "USR: I live at 1916 Juarez Centers Lake Toddchester, NV 96633.",
   "read": false,
   "score": -3.671
  },
  {
   "text": "SYS: The carrier's number is YPPN896WPT. Is there some other thing you would ask?",
   "read": false,
   "score": -1.571
  },
  {
   "text": "USR: Of course - it's Lindsay Corrigan.",
   "read": true,
   "score": -0.496
  },
  {
   "text": "USR: I live at 76103 Jessica Green Apt. 723 East Matthew, AR 81303.",
   "read": true,
   "score": -1.148
  },
  {
   "text": "SYS: Your parcel is on its way, and you can follow it under S398V85FZO. More questions?",
   "read": false,
   "score": -0.949
  }
 ],
 "made": "LSTM of 64 units, 100 simulated dialogues, 40 epochs, CPU, 2026-11-27"
};
